"""`wingbar explore`: a page, served on this machine, to look around in images with an encoder."""
