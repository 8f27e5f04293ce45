"""Handlers for what keeps data: EFS, FSx for Lustre, EBS volumes and S3 buckets."""
