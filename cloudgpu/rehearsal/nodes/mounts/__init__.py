"""Mounts of a node: shared directories for EFS, EBS and FSx for Lustre, and S3 buckets through s3fs."""
