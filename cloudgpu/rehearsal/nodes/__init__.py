"""The node host: one background process whose SSH servers are the instances of the rehearsal cloud."""
