"""Upload checkpoints to S3 during a run, and outputs after it."""
