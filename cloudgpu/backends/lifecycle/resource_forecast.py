"""A resource that `up` would create, for `plan --resources`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ResourceForecast:
    """A resource that `up` would create."""

    type: str
    """Pulumi resource type."""
    name: str

    def as_json(self) -> dict[str, str]:
        """Return the documented JSON form."""
        return {"type": self.type, "name": self.name}
