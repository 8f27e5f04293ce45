"""Terminal input and output: progress, prompts, tables and signals."""
