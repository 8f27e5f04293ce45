"""The real Pulumi CLI as an engine: the same programs, with Pulumi's own state, plugins and history."""
