"""Run a Pulumi program in this process, in place of the Pulumi CLI."""
