"""The program around the pipeline: runs, checkpoints, metrics, the loop."""
