"""The top-level component, which creates the requested kind of storage."""

from typing import Any

import pulumi

from shared_storage.settings import Kind, StorageArgs
from shared_storage.storage_kinds import Disk, Objects, ParallelFiles, SharedFiles, StorageComponent
from shared_storage.tags import storage_tags

_KINDS: dict[Kind, type[Disk | Objects | ParallelFiles | SharedFiles]] = {
    "efs": SharedFiles,
    "lustre": ParallelFiles,
    "ebs": Disk,
    "s3": Objects,
}


class SharedStorage(pulumi.ComponentResource):
    """The storage that the settings specify, with its tags."""

    def __init__(self, name: str, args: StorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:storage:Storage", name, None, opts)
        self._kind = args.kind
        self._made: StorageComponent = _KINDS[args.kind](
            name, args, storage_tags(args), pulumi.ResourceOptions(parent=self)
        )
        self.register_outputs({})

    def exports(self) -> dict[str, Any]:
        """Return the stack's outputs."""
        return {"kind": self._kind, **self._made.shown}
