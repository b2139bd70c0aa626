"""Commands for people: data, drawings, benchmarks."""
