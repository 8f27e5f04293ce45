"""One handler a Pulumi resource type: create, find, read, update, delete, in the provider's documented semantics."""
