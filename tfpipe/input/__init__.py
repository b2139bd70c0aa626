"""Inputs: where batches come from."""
