"""Consistency checks for the catalog data. All checks are pure functions."""

from cloudgpu.catalog.checking.known import CatalogData, DataProblem, load_bundled_data
from cloudgpu.catalog.checking.registry import RULES, problems

__all__ = ["RULES", "CatalogData", "DataProblem", "load_bundled_data", "problems"]
