"""RunInstances and CreateFleet: parse requests, validate them, and launch instances."""
