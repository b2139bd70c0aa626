"""Transformer models, as sequences of layers."""
