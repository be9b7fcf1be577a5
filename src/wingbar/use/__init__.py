"""A trained encoder in use: embeddings of images in a file, and search in it."""
