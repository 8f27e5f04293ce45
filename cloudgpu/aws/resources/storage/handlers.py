"""All handlers of this folder, for the registry."""

from cloudgpu.aws.resources.base import Handler
from cloudgpu.aws.resources.storage.association import DataRepositoryAssociation
from cloudgpu.aws.resources.storage.bucket import Bucket
from cloudgpu.aws.resources.storage.bucket_parts import BucketEncryption, BucketPublicAccessBlock
from cloudgpu.aws.resources.storage.efs import FileSystem
from cloudgpu.aws.resources.storage.lustre import LustreFileSystem
from cloudgpu.aws.resources.storage.mount_target import MountTarget
from cloudgpu.aws.resources.storage.volume import Volume

STORAGE: tuple[Handler, ...] = (
    FileSystem(),
    MountTarget(),
    LustreFileSystem(),
    DataRepositoryAssociation(),
    Volume(),
    Bucket(),
    BucketPublicAccessBlock(),
    BucketEncryption(),
)
