"""The targets on which runs execute. Every property of a target that code outside its backend needs is in one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from cloudgpu.errors import StateError
from cloudgpu.text import printable

Target = Literal["aws", "rehearsal", "ssh"]
"""Names of the targets, as in `--on`, in the settings and in records."""


@dataclass(frozen=True)
class TargetTraits:
    """Properties of a target.

    Attributes:
        backend: Module of the backend, which `backends.factory` imports when the target is used.
        simulated: Whether resources on the target exist only in the rehearsal cloud, so that their costs are not real.
        launches: Whether clusters consist of instances that a cloud launches and terminates. If not, they use machines
            that already exist.
    """

    backend: str
    simulated: bool = False
    launches: bool = True


TARGETS: Final[Mapping[Target, TargetTraits]] = {
    "aws": TargetTraits("cloudgpu.backends.aws.backend"),
    "rehearsal": TargetTraits("cloudgpu.backends.rehearsal", simulated=True),
    "ssh": TargetTraits("cloudgpu.backends.hosts.backend", launches=False),
}
_UNKNOWN: Final = TargetTraits("")
"""Traits of a target that only another version of cloudgpu knows. Its costs are treated as real."""


def traits(target: str) -> TargetTraits:
    """Return the properties of a target. Another version may have recorded a target that this version does not know."""
    return next((found for name, found in TARGETS.items() if name == target), _UNKNOWN)


def is_simulated(target: str) -> bool:
    """Return True if resources on this target exist only in the rehearsal cloud."""
    return traits(target).simulated


def as_target(text: str) -> Target:
    """Convert a target name from a record to a `Target`."""
    known = next((name for name in TARGETS if name == text), None)
    if known is None:
        message = f"this version of cloudgpu does not know the target {printable(text[:40])!r}"
        raise StateError(message, hint=f"use the version that created it; known targets: {', '.join(TARGETS)}")
    return known
