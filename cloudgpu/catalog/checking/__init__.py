"""Does the catalogue agree with itself? Pure: what is known goes in, problems come out."""

from cloudgpu.catalog.checking.known import Known, Problem, known
from cloudgpu.catalog.checking.registry import RULES, problems

__all__ = ["RULES", "Known", "Problem", "known", "problems"]
