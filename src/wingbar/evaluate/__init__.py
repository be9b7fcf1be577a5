"""How good is an encoder: kNN, linear probe and retrieval on frozen features, with intervals."""
