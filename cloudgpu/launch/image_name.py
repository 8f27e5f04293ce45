"""The name of a container image, taken apart as Docker does."""

import re
from dataclasses import dataclass

_HUB = "docker.io"
_LOOPBACK = re.compile(r"^127\.\d+\.\d+\.\d+$")


@dataclass(frozen=True)
class ImageName:
    """An image: where it lies, what it is called, and which one of it is meant.

    Attributes:
        registry: `nvcr.io`, `127.0.0.1:5000`; `docker.io` where none is written.
        path: `nvidia/pytorch`.
        tag: Empty where none is written and a digest is.
        digest: `sha256:...`, or empty.
    """

    registry: str
    path: str
    tag: str
    digest: str

    @property
    def repository(self) -> str:
        """Registry and path, as a pull wants them."""
        return f"{self.registry}/{self.path}"

    @property
    def server(self) -> str:
        """What a login is for."""
        return "https://index.docker.io/v1/" if self.registry == _HUB else self.registry

    @property
    def on_loopback(self) -> bool:
        """Whether its registry is whatever machine asks: each one means its own."""
        host = self.registry.rpartition(":")[0] or self.registry
        return host == "localhost" or bool(_LOOPBACK.match(host))

    def pinned(self, digest: str) -> str:
        """The same image by its digest."""
        return f"{self.repository}@{digest}"


def image_name(written: str) -> ImageName:
    """Take a name apart; a first part with a dot, a colon or `localhost` is a registry, as everywhere."""
    named, _, digest = written.partition("@")
    head, slash, rest = named.partition("/")
    is_registry = bool(slash) and ("." in head or ":" in head or head == "localhost")
    registry, path = (head, rest) if is_registry else (_HUB, named)
    path, colon, tag = path.partition(":")
    if registry == _HUB and "/" not in path:
        path = f"library/{path}"
    return ImageName(registry, path, tag if colon else "" if digest else "latest", digest)
