"""Experiments: one class for each training run."""
