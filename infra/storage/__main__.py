"""One piece of storage, as the stack's settings describe it."""

import pulumi

from shared_storage.settings import StorageArgs
from shared_storage.storage import Storage

args = StorageArgs.read(pulumi.Config("cloudgpu"))
for name, value in Storage(args.name, args).exports().items():
    pulumi.export(name, value)
