"""Upload checkpoints and outputs to S3 while a run writes them."""
