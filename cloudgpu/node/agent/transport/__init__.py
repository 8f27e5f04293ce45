"""The network that carries a run's traffic between nodes, as NCCL reports it."""
