"""The direct engine: run a Pulumi program in this process, with a journal instead of Pulumi state."""
