"""Sessions and clients of boto3: credentials, AWS errors as cloudgpu's, waiters, retries for eventual consistency."""
