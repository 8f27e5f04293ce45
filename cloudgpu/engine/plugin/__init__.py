"""The direct engine's handlers as a Pulumi resource plugin for `aws`, only for the rehearsal cloud."""
