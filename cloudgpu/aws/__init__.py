"""The only access to AWS: sessions, queries, resource handlers, tag search. `ClientError` never leaves this package."""
