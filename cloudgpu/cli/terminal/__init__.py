"""What meets the terminal: output, progress, prompts, tables and signals."""
