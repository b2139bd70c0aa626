"""Image experiments."""
