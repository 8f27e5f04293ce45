"""Provisioning: carrying out the programs in `infra/` and recording, before every call, what it is about to make."""
