"""The only door to AWS: sessions, questions, resource handlers, the search by tag. `ClientError` never leaves it."""
