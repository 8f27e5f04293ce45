"""Consistency checks of the catalog data. Pure."""

from cloudgpu.catalog.checking.known import Known, Problem, known
from cloudgpu.catalog.checking.registry import RULES, problems

__all__ = ["RULES", "Known", "Problem", "known", "problems"]
