"""Access to S3, EBS, EFS and FSx: buckets, objects, and storage that outlives clusters."""
