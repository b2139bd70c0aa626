"""Networks, as sequences of layers."""
