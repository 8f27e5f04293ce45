"""One file per command: parse the arguments, call one use case, render its result."""
