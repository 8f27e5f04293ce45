"""Handlers for storage resources: EFS, FSx for Lustre, EBS volumes and S3 buckets."""
