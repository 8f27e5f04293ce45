"""EC2 as AWS has it where moto differs: one file a kind of resource."""
