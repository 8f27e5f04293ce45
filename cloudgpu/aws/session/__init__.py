"""boto3 sessions and clients: credentials, mapping of AWS errors, waiters, retries for eventual consistency."""
