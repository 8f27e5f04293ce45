"""Derive the permissions of the nodes' role from the S3 locations in a recipe."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudgpu.engine.config import ListItem, list_setting, read_list_setting
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.sources import Source, source_of

if TYPE_CHECKING:
    # Importing the recipe schema would slow down commands that only read records.
    from cloudgpu.recipe.schema import Recipe

_RUN = "{run}"


@dataclass(frozen=True)
class RoleGrants:
    """The S3 locations that the nodes' role may read and write.

    A location is `bucket/prefix` or, if the prefix contains IDs of runs that are not known yet, the tuple of the parts
    between these IDs.
    """

    readable: tuple[ListItem, ...] = ()
    writable: tuple[ListItem, ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> "RoleGrants":
        """Read the cluster program's settings, also as version 0.1.0 wrote them."""
        return cls(read_list_setting(config.get("readable", "")), read_list_setting(config.get("writable", "")))

    def union(self, other: "RoleGrants") -> "RoleGrants":
        """Return the locations of both, without duplicates."""
        return RoleGrants(_distinct((*self.readable, *other.readable)), _distinct((*self.writable, *other.writable)))

    def covers(self, other: "RoleGrants") -> bool:
        """Return True if a role with these grants has the permissions that `other` needs."""
        return all(
            any(_contains(granted, required) for granted in here)
            for here, there in ((self.readable, other.readable), (self.writable, other.writable))
            for required in there
        )

    @property
    def config(self) -> dict[str, str]:
        """The cluster program's settings; an empty text grants nothing."""
        return {"readable": list_setting(self.readable), "writable": list_setting(self.writable)}


def role_grants(recipe: "Recipe", run_id: str = "") -> RoleGrants:
    """Return the permissions that a recipe's nodes need: only for this run or, without an ID, for any run.

    Pulling container images needs no permissions, because the caller provides the nodes' registry credentials.
    """
    targets = (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to)
    try:
        sources = [(data, source_of(data.source)) for data in recipe.data if data.endpoint is None]
        uploads = [_upload_location(to, run_id) for to in targets if to]
    except ValueError as err:
        raise RecipeError(str(err), hint="correct the URL in the recipe") from err
    in_s3 = [(data, _location(source)) for data, source in sources if source.kind == "s3"]
    written = [location for data, location in in_s3 if data.writable]
    return RoleGrants(_distinct(location for _, location in in_s3), _distinct((*uploads, *written)))


def _location(source: Source) -> str:
    return f"{source.place}/{source.path}" if source.path else source.place


def _upload_location(to: str, run_id: str) -> ListItem:
    source = source_of(to)  # with the placeholder, which no bucket name may contain
    if source.kind != "s3":
        message = f"{to}: expected an S3 URL"
        raise ValueError(message)
    location = _location(source)
    parts = [location.replace(_RUN, run_id)] if run_id else location.split(_RUN)
    return parts[0] if len(parts) == 1 else tuple(parts)


def _contains(granted: ListItem, required: ListItem) -> bool:
    """Return True if a location is the other one or a directory above it."""
    above = granted if isinstance(granted, str) else ""
    start = required if isinstance(required, str) else "".join(required[:1])
    return granted == required or bool(above and start.startswith(above.rstrip("/") + "/"))


def _distinct(locations: Iterable[ListItem]) -> tuple[ListItem, ...]:
    return tuple(dict.fromkeys(locations))
