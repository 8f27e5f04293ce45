"""The options of the commands, defined once. Nothing here imports anything slow."""
