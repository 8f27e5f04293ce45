"""What is known about GPUs, instance types, images and prices; data files, each figure with its source."""

from cloudgpu.catalog.catalog import Catalog, load
from cloudgpu.catalog.hardware import Gpu, InstanceType

__all__ = ["Catalog", "Gpu", "InstanceType", "load"]
