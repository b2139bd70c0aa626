"""AmoebaNet (Real et al., AAAI 2019), the image model of GPipe."""
