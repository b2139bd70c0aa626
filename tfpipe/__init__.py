"""tfpipe: pipeline-parallel training for TensorFlow 2."""
