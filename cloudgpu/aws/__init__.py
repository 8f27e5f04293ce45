"""The only package that calls AWS: sessions, queries, resource handlers, tag search. It never raises `ClientError`."""
