"""A Pulumi resource plugin for `aws` that runs the direct engine's handlers, for use with the rehearsal cloud only."""
