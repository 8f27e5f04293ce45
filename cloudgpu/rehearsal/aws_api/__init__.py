"""What AWS refuses and moto does not, and what AWS has and moto lacks: one file a concern, one table of rules."""
