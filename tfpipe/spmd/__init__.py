"""One program for all devices, each of which is a stage: the form that TPUs run."""
