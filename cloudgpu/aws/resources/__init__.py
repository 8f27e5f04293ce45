"""One handler per Pulumi resource type, each with the semantics that Pulumi's own AWS provider documents."""
