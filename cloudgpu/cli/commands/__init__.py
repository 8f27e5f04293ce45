"""The commands, one file each: parse the arguments, call one use case, render its result."""
