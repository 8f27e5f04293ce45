"""Mounts of a node: shared folders for EFS, EBS and Lustre, and buckets through s3fs."""
