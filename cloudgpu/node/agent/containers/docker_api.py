"""Client for the Docker Engine API, and the check that the engine can run containers with GPUs.

It uses the socket directly, so that registry logins are never written to disk.
"""

from __future__ import annotations

import grp
import http.client
import json
import os
import pwd
import shlex
import shutil
import socket
import subprocess
from dataclasses import dataclass
from typing import Any, Iterator
from urllib.parse import quote, urlencode

from ..untrusted_data import (
    MALFORMED,
    AgentError,
    parse_json,
    parse_json_object,
    raise_malformed_as,
    require_object,
    text,
)
from .run_container import _UNIX

_DEFAULT_SOCKET = "unix:///var/run/docker.sock"
_TOOL_S = 30.0
_CHUNK = 1 << 20
_MISSING = 404
_CONFLICT = 409
_ERROR_STATUS = 400
_OLDEST_API = (1, 41)
"""API version of Docker 20.10, the first version whose `exec` accepts an env file."""
_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-ctk")
_CLIENT_S = 10.0
_ANSWER_S = 10.0
"""Time limit for the engine. A hung engine must not delay a plan for long."""


@dataclass(frozen=True)
class DockerEndpoint:
    """The address of a Docker engine, and the path of the docker client to use with it."""

    docker: str
    host: str

    @property
    def client(self) -> list[str]:
        """Leading arguments of every `docker` command line for this engine."""
        return [self.docker, "--host", self.host]


class DockerApiError(AgentError):
    """The engine returned an error. `status` is 0 if the error arrived after the HTTP headers.

    `str` of the exception is the engine's own text.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason, code="no-docker", hint="run `docker info` on the node")
        self.status = status
        self.message = f"the Docker engine returned an error: {reason}"


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class DockerApi:
    """API client for one engine. Each call uses a separate connection."""

    def __init__(self, endpoint: DockerEndpoint) -> None:
        self._path = endpoint.host[len(_UNIX) :]

    def get(self, path: str, *, timeout_s: float = _TOOL_S, auth: str = "") -> Any:  # noqa: ANN401 - JSON
        """Send a GET request and return the JSON response."""
        return self._answer("GET", path, None, _headers(auth), timeout_s)

    def commit(self, container: str, name: str, config: dict[str, Any], *, timeout_s: float) -> None:
        """Create an image from the files of a container. The engine merges the container's settings into `config`."""
        repository, _, tag = name.partition(":")
        path = "/commit?" + urlencode({"container": container, "repo": repository, "tag": tag})
        headers = {"Content-Type": "application/json"}
        self._answer("POST", path, json.dumps(config).encode(), headers, timeout_s)

    def remove_image(self, name: str, *, timeout_s: float = _TOOL_S) -> bool:
        """Remove an image by name. Return False if a container uses it; it is not an error if it does not exist."""
        try:
            self._answer("DELETE", f"/images/{quote(name, safe='/:@')}", None, {}, timeout_s)
        except DockerApiError as error:
            if error.status not in (_MISSING, _CONFLICT):
                raise
            return error.status == _MISSING
        return True

    def tag(self, image_id: str, repository: str, tag: str) -> None:
        """Tag an image."""
        path = f"/images/{quote(image_id, safe=':')}/tag?" + urlencode({"repo": repository, "tag": tag})
        try:
            with raise_malformed_as(_malformed_response):
                for _ in self.lines(path, read_timeout_s=_TOOL_S):
                    pass
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable_error(error) from error

    def image(self, name: str) -> dict[str, Any] | None:
        """Inspect a local image. Return None if the image does not exist."""
        try:
            description = self.get(f"/images/{quote(name, safe='/:@')}/json")
        except DockerApiError as error:
            if error.status == _MISSING:
                return None
            raise
        with raise_malformed_as(_malformed_response):
            text(description["Id"])
            text(description["Architecture"])
            return require_object(description)

    def save(self, image_id: str, *, read_timeout_s: float) -> Iterator[bytes]:
        """Yield an image as an archive, in chunks. `read_timeout_s` limits the time without data."""
        connection = self._open(read_timeout_s)
        try:
            connection.request("GET", f"/images/{quote(image_id, safe=':')}/get")
            answer = connection.getresponse()
            if answer.status >= _ERROR_STATUS:
                _checked(answer.status, answer.read())
            yield from iter(lambda: answer.read(_CHUNK), b"")
        finally:
            connection.close()

    def load(self, archive: Iterator[bytes], *, read_timeout_s: float) -> None:
        """Load the images in an archive. `read_timeout_s` limits the time without data."""
        with raise_malformed_as(_malformed_response):
            for line in self.lines("/images/load?quiet=1", read_timeout_s=read_timeout_s, body=archive):
                if "error" in line:
                    raise DockerApiError(0, str(line["error"]))

    def lines(
        self, path: str, *, read_timeout_s: float, auth: str = "", body: Iterator[bytes] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Send a POST request and yield the JSON objects of the response, which has one per line.

        `read_timeout_s` limits the time without data.
        """
        connection = self._open(read_timeout_s)
        try:
            # A body of unknown length is sent with chunked encoding, so the archive is never held in memory.
            connection.request("POST", path, body=body, headers=_headers(auth))
            answer = connection.getresponse()
            if answer.status >= _ERROR_STATUS:
                _checked(answer.status, answer.read())
            for line in iter(answer.readline, b""):
                if line.strip():
                    yield parse_json_object(line)
        finally:
            connection.close()

    def _answer(self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float) -> Any:  # noqa: ANN401 - JSON
        connection = self._open(timeout_s)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable_error(error) from error
        finally:
            connection.close()
        return _checked(answer.status, content)

    def _open(self, timeout_s: float) -> _Connection:
        connection = _Connection(self._path, timeout_s)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise self._unreachable_error(error) from error
        return connection

    def _unreachable_error(self, error: Exception) -> AgentError:
        if isinstance(error, PermissionError):
            user, group = _user(), _group_of(self._path)
            return AgentError(
                f"{user} cannot use Docker on this node: no permission for {self._path}",
                code="no-docker",
                hint=f"run on the node: sudo usermod -aG {shlex.quote(group)} {shlex.quote(user)}, then log in again",
            )
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        hint = "run on the node: sudo systemctl start docker"
        return AgentError(f"no Docker engine responds at {self._path}: {reason}", code="no-docker", hint=hint)


def find_docker_endpoint() -> DockerEndpoint:
    """Find the docker client and the address of its engine.

    The address is DOCKER_HOST if it is set, then the address in the client's current context, then the default socket.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise AgentError(
            "docker is not installed on this node",
            code="no-docker",
            hint="install Docker (apt-get install docker.io), or use environment.python instead of a container",
        )
    host = os.environ.get("DOCKER_HOST") or _context_host(docker) or _DEFAULT_SOCKET
    if not host.startswith(_UNIX):
        raise AgentError(
            f"the Docker engine at {host} is not local to this node",
            code="no-docker",
            hint="on the node, unset DOCKER_HOST, or select the local engine: docker context use default",
        )
    return DockerEndpoint(docker, host)


def check_engine(engine: DockerApi, *, timeout_s: float = _TOOL_S) -> dict[str, Any]:
    """Check that the engine is recent enough, and return its info with the version added as `Version`."""
    with raise_malformed_as(_malformed_response):
        version = require_object(engine.get("/version", timeout_s=timeout_s))
        info = require_object(engine.get("/info", timeout_s=timeout_s))
        api = tuple(int(part) for part in str(version["ApiVersion"]).split("."))
        text(version["Version"])
    if api < _OLDEST_API:
        raise AgentError(
            f"Docker {version['Version']} on this node is too old",
            code="no-docker",
            hint="install Docker 20.10 or later",
        )
    return {**info, "Version": version["Version"]}


def _malformed_response(why: str) -> AgentError:
    message = f"unexpected response from the Docker engine: {why}"
    return AgentError(message, code="no-docker", hint="check that the engine is Docker 20.10 or later")


def _context_host(docker: str) -> str:
    """Return the engine's address in the client's current context, which rootless Docker sets, or an empty string."""
    if not os.path.exists(os.path.join(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"), "contexts")):
        return ""
    argv = [docker, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
    try:
        result = subprocess.run(argv, capture_output=True, text=True, timeout=_TOOL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def _headers(auth: str) -> dict[str, str]:
    return {"X-Registry-Auth": auth} if auth else {}


def _checked(status: int, body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        value = parse_json(body or b"{}")
    except ValueError:
        value = {"message": body.decode("utf-8", "replace").strip()}
    if status >= _ERROR_STATUS:
        message = value.get("message") if isinstance(value, dict) else ""
        raise DockerApiError(status, str(message or f"status {status}"))
    return value


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def _group_of(path: str) -> str:
    try:
        return grp.getgrgid(os.stat(path).st_gid).gr_name
    except (OSError, KeyError):
        return "docker"


def engine_state(*, gpus: bool) -> dict[str, Any]:
    """Return the engine's version and properties, or as `problem` and `hint` why it cannot run containers.

    `gpus` is True if the host has GPUs, which a container must be able to use.
    """
    state: dict[str, Any] = {"version": "", "rootless": False, "podman": False, "problem": "", "hint": ""}
    try:
        endpoint = find_docker_endpoint()
        state["podman"] = _is_podman(endpoint.docker)
        if _gets_permission_at_login(endpoint.host[len(_UNIX) :]):
            return state  # the agent restarts itself with the group when it runs a container
        info = check_engine(DockerApi(endpoint), timeout_s=_ANSWER_S)
        state["version"] = text(info["Version"])
        state["rootless"] = any("rootless" in str(option) for option in info.get("SecurityOptions") or ())
        if gpus and not has_gpu_hook() and "nvidia" not in (info.get("Runtimes") or {}):
            state["problem"] = "Docker cannot use the GPUs: nvidia-container-toolkit is not installed"
            state["hint"] = "cloudgpu hosts prepare --install container-toolkit"
    except AgentError as error:
        podman = state["podman"] and "no Docker engine responds" in error.message
        state["problem"] = error.message
        state["hint"] = "`docker` is Podman here: enable its socket, or install Docker" if podman else error.hint
    except MALFORMED as error:
        state["problem"] = f"unexpected response from the Docker engine: {error}"
    return state


def has_gpu_hook() -> bool:
    """Return True if a tool is installed through which Docker's `--gpus` gives a container GPUs."""
    return any(shutil.which(name) for name in _HOOKS)


def _is_podman(docker: str) -> bool:
    try:
        shown = subprocess.run(
            [docker, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=_CLIENT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"podman" in shown.stdout.lower()


def _gets_permission_at_login(path: str) -> bool:
    """Return True if the user may not use the socket, but is a member of its group, which this session lacks."""
    if not os.path.exists(path) or os.access(path, os.R_OK | os.W_OK) or shutil.which("sg") is None:
        return False
    try:
        return pwd.getpwuid(os.getuid()).pw_name in grp.getgrgid(os.stat(path).st_gid).gr_mem
    except (KeyError, OSError):
        return False
