"""Containers in which the agent runs programs: how a request describes one, and the names of a setup's container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import AgentError


@dataclass(frozen=True)
class ContainerSpec:
    """The container that runs a node's ranks or a recipe's setup.

    Attributes:
        image: Name of the image, for display.
        client: Leading arguments of every `docker` command line for the node's engine.
        run: Rest of the command line that starts the container.
        gpus: True if the container gets GPUs.
        devices: Indices of the GPUs that the container gets; empty for all.
        own: Directories in the container whose files are chowned to the node's user before the container is removed.
        plugin_check: Command that looks for NCCL's EFA plugin in the container; empty to omit the check.
    """

    name: str
    image: str
    client: tuple[str, ...]
    run: tuple[str, ...]
    gpus: bool = False
    devices: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    plugin_check: tuple[str, ...] = ()


def setup_image_name(key: str) -> str:
    """Return the name of the local image that a setup makes."""
    return f"cloudgpu-setup:{key}"


def setup_container_name(key: str) -> str:
    """Return the name of the container of a setup."""
    return f"cloudgpu-setup-{key}"


def read_container(request: Any, where: str, *, image: str = "image") -> ContainerSpec:  # noqa: ANN401 - unchecked input
    """Parse and validate the description of a container.

    Args:
        request: The container's part of a request.
        where: What the fields belong to, for messages, such as `start: container`.
        image: Field that has the name of the image for display.
    """
    if not isinstance(request, dict):
        raise AgentError(f"{where} must be an object")
    return ContainerSpec(
        read_text(request, "name", where),
        read_text(request, image, where),
        read_words(request, "client", where),
        read_words(request, "run", where),
        bool(request.get("gpus")),
        read_words(request, "devices", where, empty=True),
        read_words(request, "own", where, empty=True),
        read_words(request, "plugin_check", where, empty=True),
    )


def read_text(request: dict[str, Any], name: str, where: str) -> str:
    """Return a string that is not empty and can be an argument of a command."""
    value = request.get(name)
    if not isinstance(value, str) or not value or "\0" in value:
        raise AgentError(f"{where}.{name} must be text")
    return value


def read_words(request: dict[str, Any], name: str, where: str, *, empty: bool = False) -> tuple[str, ...]:
    """Return the words of a command line.

    Args:
        request: Object with the field.
        name: Name of the field.
        where: What the field belongs to, for messages.
        empty: True if the field may be missing or empty.
    """
    words = request.get(name) or []
    if not isinstance(words, list) or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise AgentError(f"{where}.{name} must be a list of strings")
    if not words and not empty:
        raise AgentError(f"{where}.{name} must not be empty")
    return tuple(words)
