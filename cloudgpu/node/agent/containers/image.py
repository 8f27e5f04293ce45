"""`image`: resolve a tag to a digest, or make the image available on this node and describe the image and the engine.

With `id`, the node must have the image with exactly this ID. If the image is missing, it is fetched from the node that
`hand` describes; without `hand`, the response is `{"missing": true}`.

A setup script runs in a container of the recipe's image. The files of this container become the local image, in which
the ranks of later runs start. Nothing remains of a setup that fails or is interrupted, whatever interrupts it.
"""

from __future__ import annotations

import glob
import os
import platform
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator
from urllib.parse import quote

from ..fetch.http import parse_peer
from ..proc import WatchdogProcess
from ..untrusted_data import AgentError, raise_malformed_as, require_integer, require_number, require_object, text
from . import image_transfer, run_container
from .docker_api import DockerApi, DockerApiError, DockerEndpoint, check_engine, find_docker_endpoint, has_gpu_hook
from .run_container import ContainerSpec, RankContainer, setup_image_name

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_READ_TIMEOUT_S = 300.0
_POLICIES = ("missing", "always", "never")
_DEVICES = ("/dev/infiniband/*", "/dev/gdrdrv")
_UNPACKING = 1.5
"""Bytes of disk space needed per byte of the image, whose compressed and unpacked layers temporarily coexist."""

Emit = Callable[[Dict[str, Any]], None]
LABEL = "cloudgpu.recipe"
"""Label of the local images, with the name of the recipe."""
_COMMIT_S = 3600.0
"""Time limit for a commit, in seconds. The engine sends nothing while it writes tens of gigabytes."""
_OWN_S = 300.0
_REMOVE_S = 120.0


def prepare_image(spec: dict[str, Any], emit: Emit) -> None:
    """Print progress lines, then the digest (with `resolve`) or the image and the node's engine."""
    request = _read(spec)
    endpoint = find_docker_endpoint()
    run_container.restart_with_docker_group(endpoint.host, "image", spec)
    engine = DockerApi(endpoint)
    info = check_engine(engine)

    def report(text: str) -> None:
        emit({"progress": text})

    if spec.get("resolve"):
        emit({"digest": _resolved(engine, request, report)})
        return
    result = (
        _local_or_from_peer(engine, request, info, spec, report)
        if spec.get("id")
        else _local_or_pulled(engine, request, info, report)
    )
    if result is None:
        emit({"missing": True})
        return
    image, pulled = result
    _fits(request["image"], [image["Architecture"]])
    emit({**_described(image, request), "pulled": pulled, "engine": _engine(endpoint, info)})


def _read(spec: dict[str, Any]) -> dict[str, Any]:
    for name in ("image", "repository"):
        if not isinstance(spec.get(name), str) or not spec[name]:
            raise AgentError(f"image: {name} must be a non-empty string")
    policy = spec.get("pull", "missing")
    if policy not in _POLICIES:
        raise AgentError(f"image: pull must be one of {', '.join(_POLICIES)}")
    names = {name: str(spec.get(name) or "") for name in ("image", "repository", "tag", "digest")}
    with raise_malformed_as(lambda why: AgentError(f"image: invalid request: {why}")):
        login = require_object(spec.get("login") or {})
        size = require_integer(spec.get("size_bytes") or 0)
        read_timeout_s = float(require_number(spec.get("read_timeout_s") or _READ_TIMEOUT_S))
    return {**names, "pull": policy, "login": login, "size": size, "read_timeout_s": read_timeout_s}


def _resolved(engine: DockerApi, request: dict[str, Any], report: Callable[[str], None]) -> str:
    """Return the digest that every node must use; empty if it is unknown, as for an image that was never pushed."""
    if request["digest"]:
        return str(request["digest"])
    image = None if request["pull"] == "always" else engine.image(_by_tag(request))
    if image is not None:
        return _digest(image, request["repository"])
    if request["pull"] == "never":
        raise _missing_image(request)
    return _registry_digest(engine, request, report)


def _registry_digest(engine: DockerApi, request: dict[str, Any], report: Callable[[str], None]) -> str:
    """Get the digest from the registry and check the architectures. Return an empty string on a transient failure."""
    name = _by_tag(request)
    try:
        answer = engine.get(
            f"/distribution/{quote(name, safe='/:@')}/json", auth=image_transfer.login_header(request["login"])
        )
    except DockerApiError as error:
        failure = image_transfer.pull_error(name, error)
        if failure.code != "network":
            raise failure from error
        report(f"{failure.message}; the pull will retry")
        return ""
    with raise_malformed_as(_malformed_description):
        digest = text(answer["Descriptor"]["digest"])
        architectures = [text(platform.get("architecture", "")) for platform in answer.get("Platforms") or ()]
    _fits(name, architectures)
    return digest


def _local_or_pulled(
    engine: DockerApi, request: dict[str, Any], info: dict[str, Any], report: Callable[[str], None]
) -> tuple[dict[str, Any], bool]:
    """Pull the image if necessary. Return the image, and True if this call pulled it."""
    name = f"{request['repository']}@{request['digest']}" if request["digest"] else _by_tag(request)
    image = engine.image(name)
    if image is not None and (request["digest"] or request["pull"] != "always"):
        return image, False
    if request["pull"] == "never":
        raise _missing_image(request)
    _has_room(info, request)
    report(f"pulling {request['image']}")
    which = request["digest"] or request["tag"]
    image_transfer.pull(engine, request["repository"], which, request["login"], report, request["read_timeout_s"])
    image = engine.image(name)
    if image is None:
        raise AgentError(f"{request['image']} was pulled, but Docker does not list it", code="network")
    if request["digest"] and request["tag"]:
        # Otherwise the next run would not find the image by its tag.
        engine.tag(image["Id"], request["repository"], request["tag"])
    return image, True


def _local_or_from_peer(
    engine: DockerApi,
    request: dict[str, Any],
    info: dict[str, Any],
    spec: dict[str, Any],
    report: Callable[[str], None],
) -> tuple[dict[str, Any], bool] | None:
    """Fetch the image from another node if necessary. Return the image, and True if this call fetched it.

    Return None if the image is missing and the request has no other node to fetch it from.
    """
    image_id, peer = str(spec["id"]), parse_peer(spec)
    image = engine.image(image_id)
    if image is not None or peer is None:
        return None if image is None else (image, False)
    report(f"fetching {request['image']} from another node: {image_transfer.size_text(int(spec['archive_bytes']))}")
    image_transfer.load_from_peer(engine, info, image_id, int(spec["archive_bytes"]), peer)
    if request["tag"]:
        engine.tag(image_id, request["repository"], request["tag"])
    image = engine.image(image_id)
    return None if image is None else (image, True)


def _missing_image(request: dict[str, Any]) -> AgentError:
    message = f"{request['image']} is not on this node and environment.container.pull is set to `never`"
    return AgentError(
        message, code="no-image", hint="set environment.container.pull to missing, or load the image on the node"
    )


def _has_room(info: dict[str, Any], request: dict[str, Any]) -> None:
    """Check the disk space if the image's size is known."""
    needed = int(int(request["size"]) * _UNPACKING)
    what = f"{request['image']} needs about {image_transfer.size_text(needed)} while it is unpacked"
    image_transfer.require_free_space(
        str(info.get("DockerRootDir") or "/"), needed, what, "use a larger disk: resources.disk"
    )


def _fits(name: str, architectures: list[str]) -> None:
    local = _MACHINES.get(platform.machine(), platform.machine())
    known = [architecture for architecture in architectures if architecture and architecture != "unknown"]
    if known and local not in known:
        message = f"{name} is built for {', '.join(sorted(set(known)))}, but this node is {local}"
        raise AgentError(message, code="architecture", hint=f"choose a tag that is built for linux/{local}")


def _by_tag(request: dict[str, Any]) -> str:
    return (
        f"{request['repository']}:{request['tag']}"
        if request["tag"]
        else f"{request['repository']}@{request['digest']}"
    )


def _digest(image: dict[str, Any], repository: str) -> str:
    """Return the image's digest in this repository; empty if the image was not pulled from it."""
    short_name = repository.replace("docker.io/library/", "").replace("docker.io/", "")
    with raise_malformed_as(_malformed_description):
        pairs = [digest.partition("@") for digest in image.get("RepoDigests") or ()]
    return next((digest for place, _, digest in pairs if place in (short_name, repository)), "")


def _described(image: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    with raise_malformed_as(_malformed_description):
        entrypoint = [text(word) for word in (image.get("Config") or {}).get("Entrypoint") or ()]
        size = require_integer(image.get("Size") or 0)
    digest = _digest(image, request["repository"])
    return {"id": image["Id"], "digest": digest, "entrypoint": entrypoint, "size_bytes": size}


def _malformed_description(why: str) -> AgentError:
    message = f"unexpected image description from the Docker engine: {why}"
    return AgentError(message, code="no-docker", hint="check that the engine is Docker 20.10 or later")


def _engine(endpoint: DockerEndpoint, info: dict[str, Any]) -> dict[str, Any]:
    return {
        "docker": endpoint.docker,
        "host": endpoint.host,
        "version": str(info.get("Version", "")),
        "gpu_runtime": _needs_nvidia_runtime(info),
        "devices": _devices(),
        "huge_pages": _huge_pages(),
    }


def _needs_nvidia_runtime(info: dict[str, Any]) -> bool:
    """Return True if GPUs are available only through the `nvidia` runtime, which nvidia-docker2 sets up."""
    return "nvidia" in (info.get("Runtimes") or {}) and not has_gpu_hook()


def _devices() -> list[str]:
    """Return the devices that a container gets besides the GPUs: RDMA, and GDRCopy's, which copies small messages."""
    paths = [path for pattern in _DEVICES for path in sorted(glob.glob(pattern))]
    return [path for path in paths if stat.S_ISCHR(os.stat(path).st_mode)]


def _huge_pages() -> bool:
    """Return True if the node has huge pages and the directory `/dev/hugepages`."""
    try:
        with open("/proc/sys/vm/nr_hugepages", encoding="ascii") as stream:
            return int(stream.read()) > 0 and os.path.isdir("/dev/hugepages")
    except (OSError, ValueError):
        return False


_PENDING, _SETTLED, _COMPLETE = b"pending", b"settled", b"complete"
"""States of a setup, for its watchdog: the engine may be creating something; it is not; the image is complete."""


@dataclass(frozen=True)
class SetupContainerSpec:
    """The container that runs a setup.

    Attributes:
        image: Image that the container is started from, with the digest if it is known.
        container: The container.
        script: Path of the script on the node, in a directory that is mounted in the container.
        run_script: Command that runs the script in the container.
        recipe: Name of the recipe.
    """

    image: str
    container: ContainerSpec
    script: str
    run_script: tuple[str, ...]
    recipe: str


class SetupImage:
    """The local image of one setup.

    The caller holds the setup's lock. If this process dies, a watchdog removes the container and the image, and
    releases the lock afterwards, so that no other attempt uses their names before that.
    """

    def __init__(self, spec: SetupContainerSpec, key: str, lock: int) -> None:
        self._spec, self._lock = spec, lock
        self.name = setup_image_name(key)
        self._engine = _setup_engine(spec)
        self._container = RankContainer(spec.container)

    def exists(self) -> bool:
        """Return True if the image is on this node."""
        return self._engine.image(self.name) is not None

    @contextmanager
    def container(self, folder: str) -> Iterator[Callable[[], None]]:
        """Run the container during the block, and provide a function that commits it as the image.

        If the block fails, the image is removed too.

        Args:
            folder: Directory of the setup.
        """
        self._remove_image()  # an interrupted setup may have left it
        watchdog = WatchdogProcess(self._clean_up, open_handles=(self._lock,))
        watchdog.send(_PENDING)
        try:
            self._container.create(folder)
            watchdog.send(_SETTLED)
            # An interrupted setup may have left files of another user in the work directory.
            self._container.restore_ownership(_OWN_S)
            yield lambda: self._commit(watchdog)
            watchdog.send(_COMPLETE)
        except BaseException:
            self._container.remove()
            with suppress(AgentError):
                self._remove_image()
            raise
        finally:
            removed = self._container.remove()
            # If a call to the engine failed or timed out, the engine may still create what it was asked for.
            if removed and watchdog.last != _PENDING:
                watchdog.dismiss()
            else:
                watchdog.close()

    def _commit(self, watchdog: WatchdogProcess) -> None:
        """Keep the container's files as the image, with the configuration of the image that it was started from."""
        self._container.restore_ownership(_OWN_S)
        config = kept_config(self._engine.image(self._spec.image), self._spec.recipe)
        watchdog.send(_PENDING)
        try:
            self._engine.commit(self._spec.container.name, self.name, config, timeout_s=_COMMIT_S)
        except DockerApiError as error:
            hint = "use a larger disk: resources.disk" if "no space left" in str(error) else error.hint
            raise AgentError(f"cannot save the setup as {self.name}: {error}", hint=hint) from error
        watchdog.send(_SETTLED)

    def _remove_image(self) -> None:
        self._engine.remove_image(self.name, timeout_s=_REMOVE_S)

    def _clean_up(self, messages: list[bytes]) -> None:
        """Remove the container, and the image unless it is complete, after the agent has died."""
        state = messages[-1] if messages else _PENDING
        also = None if state == _COMPLETE else self._remove_image
        self._container.remove_with_retries(also, pending=state == _PENDING)


def kept_config(image: dict[str, Any] | None, recipe: str) -> dict[str, Any]:
    """Return the configuration of the local image: that of the recipe's image, and the label.

    The engine takes what the configuration leaves out from the container. So an image without an entry point needs an
    empty one, or it would get the one that keeps the container running.
    """
    if image is None:
        raise AgentError("the image of the setup was removed from this node", hint="run the command again")
    with raise_malformed_as(lambda why: AgentError(f"unexpected image description from the Docker engine: {why}")):
        config = require_object(image.get("Config") or {})
        labels = require_object(config.get("Labels") or {})
    return {**config, "Entrypoint": config.get("Entrypoint") or [], "Labels": {**labels, LABEL: recipe}}


def remove_unused_image(spec: SetupContainerSpec, key: str) -> bool:
    """Remove the image of another setup. Return False if a container uses it."""
    return _setup_engine(spec).remove_image(setup_image_name(key), timeout_s=_REMOVE_S)


def _setup_engine(spec: SetupContainerSpec) -> DockerApi:
    return DockerApi(DockerEndpoint(spec.container.client[0], spec.container.client[-1]))
