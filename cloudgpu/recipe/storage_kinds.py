"""The kinds of storage that a recipe or `storage create` can make, and their limits. Imports no pydantic."""

from typing import Final, Literal, get_args

StorageKind = Literal["efs", "lustre", "ebs", "s3"]
KINDS: Final[tuple[StorageKind, ...]] = get_args(StorageKind)
ZONAL: Final = frozenset({"lustre", "ebs"})
"""Kinds that exist in a single zone."""
FILE_SYSTEMS: Final = frozenset({"efs", "lustre"})
"""Kinds that nodes mount over the network of one VPC, as members of a security group."""
Deployment = Literal["scratch_2", "persistent_2"]
"""Deployment types of a Lustre file system."""
SMALLEST_LUSTRE_GIB: Final = 1200
LUSTRE_STEP_GIB: Final = 2400
"""Larger Lustre file systems have a multiple of this size."""


def is_lustre_size(gib: int) -> bool:
    """Return True if AWS creates Lustre file systems of this size."""
    return gib == SMALLEST_LUSTRE_GIB or (gib > 0 and gib % LUSTRE_STEP_GIB == 0)
