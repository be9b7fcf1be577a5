"""Networks and their weights: trunks, decoders, heads, whitening, embedders."""
