"""Images in: the embedded look-alikes, image folders, decoded stores and batched views."""
