"""Layers: Params, declared weights, a pure FProp and its cost."""
