"""Upload of checkpoints to S3 while a run writes them."""
