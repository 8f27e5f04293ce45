"""Consistency checks of the catalog data. Pure."""

from cloudgpu.catalog.checking.known import DataProblem, Known, known
from cloudgpu.catalog.checking.registry import RULES, problems

__all__ = ["RULES", "DataProblem", "Known", "known", "problems"]
