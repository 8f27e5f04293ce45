"""One handler per Pulumi resource type, with the semantics documented for Pulumi's AWS provider."""
