"""Consistency checks of the catalog data. Pure."""

from cloudgpu.catalog.checking.known import CatalogData, DataProblem, load_bundled_data
from cloudgpu.catalog.checking.registry import RULES, problems

__all__ = ["RULES", "CatalogData", "DataProblem", "load_bundled_data", "problems"]
