"""Catalog of GPUs, instance types, images and prices: data files with a source for every figure."""

from cloudgpu.catalog.catalog import Catalog, load
from cloudgpu.catalog.hardware import Gpu, InstanceType

__all__ = ["Catalog", "Gpu", "InstanceType", "load"]
