"""Pulumi program for one storage, from the settings of its stack."""

import pulumi

from shared_storage.settings import StorageArgs
from shared_storage.storage import Storage

args = StorageArgs.read(pulumi.Config("cloudgpu"))
for name, value in Storage(args.name, args).exports().items():
    pulumi.export(name, value)
