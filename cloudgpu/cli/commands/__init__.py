"""The commands, those of one subject in one file: parse the arguments, call one use case, render its result."""
