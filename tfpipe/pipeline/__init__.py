"""The builder: placement, partition, schedule and cells become one TensorFlow graph."""
