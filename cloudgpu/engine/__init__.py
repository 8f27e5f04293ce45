"""Provisioning engines, which run the programs in `infra/` and record every operation before it starts."""
