"""All storage handlers, for the registry."""

from cloudgpu.aws.resources.base import Handler
from cloudgpu.aws.resources.storage.association import DataRepositoryAssociationHandler
from cloudgpu.aws.resources.storage.bucket import BucketHandler
from cloudgpu.aws.resources.storage.bucket_parts import BucketEncryptionHandler, BucketPublicAccessBlockHandler
from cloudgpu.aws.resources.storage.efs import EfsHandler
from cloudgpu.aws.resources.storage.lustre import LustreHandler
from cloudgpu.aws.resources.storage.mount_target import MountTargetHandler
from cloudgpu.aws.resources.storage.volume import VolumeHandler

STORAGE_HANDLERS: tuple[Handler, ...] = (
    EfsHandler(),
    MountTargetHandler(),
    LustreHandler(),
    DataRepositoryAssociationHandler(),
    VolumeHandler(),
    BucketHandler(),
    BucketPublicAccessBlockHandler(),
    BucketEncryptionHandler(),
)
