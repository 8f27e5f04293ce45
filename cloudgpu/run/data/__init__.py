"""Transfer datasets, checkpoints and outputs to and from the nodes."""
