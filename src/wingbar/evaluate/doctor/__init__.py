"""The data doctor: what is wrong with a set of images, found before anything is trained on it."""
