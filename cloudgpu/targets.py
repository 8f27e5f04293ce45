"""The targets on which runs execute. Every property of a target that code outside its backend needs is in one table.

A backend in another package registers itself as an entry point; see docs/explanation/backends.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from cloudgpu.errors import StateError
from cloudgpu.text import command, printable

Target = str
"""Name of a target, as in `--on`, in the settings and in records."""


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
"""The targets of this package, in the order in which help and hints list them."""
GROUP: Final = "cloudgpu.backends"
"""Group of the entry points of other packages. An entry point is named like its target and refers to `TargetTraits`."""
_UNKNOWN: Final = TargetTraits("")
"""Traits of a target that only another version of cloudgpu knows. Its costs are treated as real."""


def find(name: str) -> TargetTraits | None:
    """Return the properties of a target, or None if neither the table nor an installed package has this target."""
    return TARGETS.get(name) or _installed(name)


@cache
def _installed(name: str) -> TargetTraits | None:
    # Only for names that the table lacks: importing and searching the metadata takes longer than `--help`.
    from importlib.metadata import entry_points  # noqa: PLC0415

    for point in entry_points(group=GROUP, name=name):
        try:
            found = point.load()
        except Exception as err:
            message = f"the backend of the target {printable(name)} cannot be imported: {printable(str(err))}"
            raise StateError(message, hint=f"reinstall the package that provides {point.value}") from err
        if isinstance(found, TargetTraits):
            return found
    return None


def traits(target: str) -> TargetTraits:
    """Return the properties of a target. Another version may have recorded a target that this version does not know."""
    try:
        return find(target) or _UNKNOWN
    except StateError:  # commands on records work even if the package of a backend is damaged
        return _UNKNOWN


def is_simulated(target: str) -> bool:
    """Return True if resources on this target exist only in the rehearsal cloud."""
    return traits(target).simulated


def as_target(text: str) -> Target:
    """Return a target's name from a record, after checking that the target is known."""
    if find(text) is None:
        message = f"this version of cloudgpu does not know the target {printable(text[:40])!r}"
        raise StateError(message, hint=f"use the version that created it; known targets: {', '.join(TARGETS)}")
    return text


def cloud_options(besides: Target = "") -> str:
    """Return the options that select targets whose instances a cloud launches, for hints; all but `besides`."""
    return " or ".join(command("--on", name) for name, found in TARGETS.items() if found.launches and name != besides)
