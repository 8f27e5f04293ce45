"""RunInstances and CreateFleet: what is asked for, why AWS refuses it, and what is made."""
