"""`image`: resolve a tag to a digest, or provide the image on this node and describe it and the engine.

With `id`, exactly this image is required. It is fetched from another node (`hand`), or the response is `missing`.
"""

from __future__ import annotations

import glob
import os
import platform
import shutil
import stat
from typing import Any, Callable, Dict
from urllib.parse import quote

from ..errors import AgentError
from ..fetch.from_peer import peer_of
from ..untrusted_data import malformed_as, mapping, number, text, whole
from . import docker_group, image_archive, pull
from .docker_api import DockerApi, DockerApiError, DockerEndpoint, checked, locate

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_SILENCE_S = 300.0
_POLICIES = ("missing", "always", "never")
_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-ctk")
_UNPACKING = 1.5
"""Compressed and unpacked layers exist side by side for a while."""

Emit = Callable[[Dict[str, Any]], None]


def verb(spec: dict[str, Any], emit: Emit) -> None:
    """Print progress lines, then the digest (with `resolve`) or the image and the node's engine.

    Raises:
        AgentError: The engine, image, login or disk space is missing, or the image is for another architecture.
    """
    wanted = _read(spec)
    located = locate()
    docker_group.enter(located.host, "image", spec)
    engine = DockerApi(located)
    info = checked(engine)

    def tell(text: str) -> None:
        emit({"progress": text})

    if spec.get("resolve"):
        emit({"digest": _resolved(engine, wanted, tell)})
        return
    handed = _handed(engine, wanted, info, spec, tell) if spec.get("id") else _provided(engine, wanted, info, tell)
    if handed is None:
        emit({"missing": True})
        return
    found, pulled = handed
    _fits(wanted["image"], [found["Architecture"]])
    emit({**_described(found, wanted), "pulled": pulled, "engine": _engine(located, info)})


def _read(spec: dict[str, Any]) -> dict[str, Any]:
    for name in ("image", "repository"):
        if not isinstance(spec.get(name), str) or not spec[name]:
            raise AgentError(f"image: {name} must be a name")
    policy = spec.get("pull", "missing")
    if policy not in _POLICIES:
        raise AgentError(f"image: pull must be one of {', '.join(_POLICIES)}")
    known = {name: str(spec.get(name) or "") for name in ("image", "repository", "tag", "digest")}
    with malformed_as(lambda why: AgentError(f"image: invalid request: {why}")):
        login = mapping(spec.get("login") or {})
        size = whole(spec.get("size_bytes") or 0)
        silence = float(number(spec.get("silence_s") or _SILENCE_S))
    return {**known, "pull": policy, "login": login, "size": size, "silence": silence}


def _resolved(engine: DockerApi, wanted: dict[str, Any], tell: Callable[[str], None]) -> str:
    """Return the digest that every node must use; empty for a local image that no registry has."""
    if wanted["digest"]:
        return str(wanted["digest"])
    here = None if wanted["pull"] == "always" else engine.image(_by_tag(wanted))
    if here is not None:
        return _digest(here, wanted["repository"])
    if wanted["pull"] == "never":
        raise _not_here(wanted)
    return _asked(engine, wanted, tell)


def _asked(engine: DockerApi, wanted: dict[str, Any], tell: Callable[[str], None]) -> str:
    """Ask the registry for the digest and the architectures before pulling anything."""
    name = _by_tag(wanted)
    try:
        answer = engine.get(f"/distribution/{quote(name, safe='/:@')}/json", auth=pull.header(wanted["login"]))
    except DockerApiError as error:
        failure = pull.fault(name, error)
        if failure.code != "network":
            raise failure from error
        tell(f"{failure.message}; the pull will retry")
        return ""
    with malformed_as(_senseless):
        digest = text(answer["Descriptor"]["digest"])
        architectures = [text(platform.get("architecture", "")) for platform in answer.get("Platforms") or ()]
    _fits(name, architectures)
    return digest


def _provided(
    engine: DockerApi, wanted: dict[str, Any], info: dict[str, Any], tell: Callable[[str], None]
) -> tuple[dict[str, Any], bool]:
    """Return the image on this node, and whether it was pulled by this call."""
    name = f"{wanted['repository']}@{wanted['digest']}" if wanted["digest"] else _by_tag(wanted)
    here = engine.image(name)
    if here is not None and (wanted["digest"] or wanted["pull"] != "always"):
        return here, False
    if wanted["pull"] == "never":
        raise _not_here(wanted)
    _has_room(info, wanted)
    tell(f"pulling {wanted['image']}")
    which = wanted["digest"] or wanted["tag"]
    pull.pull(engine, wanted["repository"], which, wanted["login"], tell, wanted["silence"])
    here = engine.image(name)
    if here is None:
        raise AgentError(f"{wanted['image']} was pulled, but the engine does not have it", code="network")
    if wanted["digest"] and wanted["tag"]:
        # Otherwise the next run would not find the image by its tag.
        engine.tag(here["Id"], wanted["repository"], wanted["tag"])
    return here, True


def _handed(
    engine: DockerApi, wanted: dict[str, Any], info: dict[str, Any], spec: dict[str, Any], tell: Callable[[str], None]
) -> tuple[dict[str, Any], bool] | None:
    """Return the image with this ID, and whether it was fetched by this call; None if no node offers it."""
    image_id, hand = str(spec["id"]), peer_of(spec)
    here = engine.image(image_id)
    if here is not None or hand is None:
        return None if here is None else (here, False)
    tell(f"fetching {wanted['image']} from another node: {pull.size_text(int(spec['archive_bytes']))}")
    image_archive.load_from_peer(engine, info, image_id, int(spec["archive_bytes"]), hand)
    if wanted["tag"]:
        engine.tag(image_id, wanted["repository"], wanted["tag"])
    here = engine.image(image_id)
    return None if here is None else (here, True)


def _not_here(wanted: dict[str, Any]) -> AgentError:
    message = f"{wanted['image']} is not on this node and environment.container.pull is never"
    return AgentError(message, code="no-image", hint="set it to missing, or load the image on the node")


def _has_room(info: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Check the disk space if the image's size is known."""
    needed = int(int(wanted["size"]) * _UNPACKING)
    what = f"{wanted['image']} needs about {pull.size_text(needed)} while it is unpacked"
    pull.require_free_space(str(info.get("DockerRootDir") or "/"), needed, what, "use a larger disk: resources.disk")


def _fits(name: str, architectures: list[str]) -> None:
    local = _MACHINES.get(platform.machine(), platform.machine())
    known = [architecture for architecture in architectures if architecture and architecture != "unknown"]
    if known and local not in known:
        message = f"{name} is built for {', '.join(sorted(set(known)))}, but this node is {local}"
        raise AgentError(message, code="architecture", hint=f"choose a tag that is built for linux/{local}")


def _by_tag(wanted: dict[str, Any]) -> str:
    return f"{wanted['repository']}:{wanted['tag']}" if wanted["tag"] else f"{wanted['repository']}@{wanted['digest']}"


def _digest(found: dict[str, Any], repository: str) -> str:
    """Return the image's digest in the registry; empty if it did not come from one."""
    plain = repository.replace("docker.io/library/", "").replace("docker.io/", "")
    with malformed_as(_senseless):
        pairs = [digest.partition("@") for digest in found.get("RepoDigests") or ()]
    return next((digest for place, _, digest in pairs if place in (plain, repository)), "")


def _described(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    with malformed_as(_senseless):
        entrypoint = [text(word) for word in (found.get("Config") or {}).get("Entrypoint") or ()]
        size = whole(found.get("Size") or 0)
    digest = _digest(found, wanted["repository"])
    return {"id": found["Id"], "digest": digest, "entrypoint": entrypoint, "size_bytes": size}


def _senseless(why: str) -> AgentError:
    message = f"unexpected image description from the Docker engine: {why}"
    return AgentError(message, code="no-docker", hint="check that the engine is Docker 20.10 or later")


def _engine(located: DockerEndpoint, info: dict[str, Any]) -> dict[str, Any]:
    return {
        "docker": located.docker,
        "host": located.host,
        "version": str(info.get("Version", "")),
        "gpu_runtime": _legacy(info),
        "devices": _devices("/dev/infiniband"),
        "huge_pages": _huge_pages(),
    }


def _legacy(info: dict[str, Any]) -> bool:
    """Return True if GPUs are available only through the `nvidia` runtime, as nvidia-docker2 set it up."""
    return "nvidia" in (info.get("Runtimes") or {}) and not any(shutil.which(name) for name in _HOOKS)


def _devices(folder: str) -> list[str]:
    return [path for path in sorted(glob.glob(f"{folder}/*")) if stat.S_ISCHR(os.stat(path).st_mode)]


def _huge_pages() -> bool:
    """Return True if the node has huge pages and mounts them."""
    try:
        with open("/proc/sys/vm/nr_hugepages", encoding="ascii") as stream:
            return int(stream.read()) > 0 and os.path.isdir("/dev/hugepages")
    except (OSError, ValueError):
        return False
