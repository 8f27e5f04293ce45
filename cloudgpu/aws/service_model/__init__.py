"""Compare requests and responses with botocore's service models, which botocore itself does only in part."""
