"""What a node mounts: shared folders for EFS, EBS and Lustre, and buckets through s3fs."""
