"""Parse the name of a container image as Docker does."""

import re
from dataclasses import dataclass

_HUB = "docker.io"
_LOOPBACK = re.compile(r"^127\.\d+\.\d+\.\d+$")


@dataclass(frozen=True)
class ImageName:
    """The parsed name of a container image.

    Attributes:
        registry: Registry, such as `nvcr.io` or `127.0.0.1:5000`; `docker.io` if the name contains none.
        path: Path of the repository, such as `nvidia/pytorch`.
        tag: Tag. If the name contains no tag: empty if it contains a digest, otherwise `latest`.
        digest: Digest, `sha256:...`; empty if the name contains none.
    """

    registry: str
    path: str
    tag: str
    digest: str

    @property
    def repository(self) -> str:
        """Registry and path, as `docker pull` expects them."""
        return f"{self.registry}/{self.path}"

    @property
    def server(self) -> str:
        """Server name for `docker login`."""
        return "https://index.docker.io/v1/" if self.registry == _HUB else self.registry

    @property
    def on_loopback(self) -> bool:
        """True if the registry is on a loopback address, which is a different registry on each machine."""
        host = self.registry.rpartition(":")[0] or self.registry
        return host == "localhost" or bool(_LOOPBACK.match(host))

    def pinned(self, digest: str) -> str:
        """Return the same image pinned to a digest."""
        return f"{self.repository}@{digest}"


def parse_image_name(written: str) -> ImageName:
    """Parse an image name. The first component is a registry if it is `localhost` or contains a dot or a colon."""
    named, _, digest = written.partition("@")
    head, slash, rest = named.partition("/")
    is_registry = bool(slash) and ("." in head or ":" in head or head == "localhost")
    registry, path = (head, rest) if is_registry else (_HUB, named)
    path, colon, tag = path.partition(":")
    if registry == _HUB and "/" not in path:
        path = f"library/{path}"
    return ImageName(registry, path, tag if colon else "" if digest else "latest", digest)
