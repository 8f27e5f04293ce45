"""Pulumi program that creates the storage described by its stack's settings."""

import pulumi

from shared_storage.settings import StorageArgs
from shared_storage.storage import SharedStorage

args = StorageArgs.read(pulumi.Config("cloudgpu"))
for name, value in SharedStorage(args.name, args).exports().items():
    pulumi.export(name, value)
