"""One handler per Pulumi resource type, with the semantics that Pulumi documents for its AWS provider."""
