"""Language model experiments."""
