"""The catalog of GPUs, instance types, images and prices. Its data files cite a source for every value."""

from cloudgpu.catalog.catalog import Catalog, load
from cloudgpu.catalog.hardware import Gpu, InstanceType

__all__ = ["Catalog", "Gpu", "InstanceType", "load"]
