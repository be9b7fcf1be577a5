"""`wingbar classify`: from few labels to a head on an embedder."""
