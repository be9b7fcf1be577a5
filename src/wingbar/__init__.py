"""wingbar: self-supervised learning for fine-grained visual recognition."""
