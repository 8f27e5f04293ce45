"""The pulumi engine: run the same programs with the real Pulumi CLI and with Pulumi's state, plugins and history."""
