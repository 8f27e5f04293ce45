"""The node's Docker engine: where it listens, and its own API over that socket, so that no login touches the disk."""

from __future__ import annotations

import grp
import http.client
import os
import pwd
import shlex
import shutil
import socket
import subprocess
from dataclasses import dataclass
from typing import Any, Iterator
from urllib.parse import quote, urlencode

from ..errors import AgentError
from ..foreign import malformed_as, mapping, parsed, parsed_object, text

_USUAL = "unix:///var/run/docker.sock"
_UNIX = "unix://"
_TOOL_S = 30.0
_PIECE = 1 << 20
_MISSING = 404
_REFUSED = 400
_OLDEST = (1, 41)
"""Docker 20.10, the first whose `exec` reads the names of variables from a file."""


@dataclass(frozen=True)
class DockerEndpoint:
    """The client's path and the engine's address."""

    docker: str
    host: str

    @property
    def client(self) -> list[str]:
        """The words that every command line for this engine begins with."""
        return [self.docker, "--host", self.host]


class RefusedError(Exception):
    """The engine answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Engine:
    """Calls to one engine. One connection a call."""

    def __init__(self, located: DockerEndpoint) -> None:
        self._path = located.host[len(_UNIX) :]

    def get(self, path: str, *, timeout_s: float = _TOOL_S, auth: str = "") -> Any:  # noqa: ANN401 - JSON
        """What a GET answers.

        Raises:
            AgentError: The engine cannot be reached.
            RefusedError: It answered with an error.
        """
        connection = self._open(timeout_s)
        try:
            connection.request("GET", path, headers=_headers(auth))
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from error
        finally:
            connection.close()
        return _checked(answer.status, body)

    def tag(self, image_id: str, repository: str, tag: str) -> None:
        """Give an image a name.

        Raises:
            AgentError: The engine cannot be reached.
            RefusedError: It answered with an error.
            OSError: It fell silent.
        """
        path = f"/images/{quote(image_id, safe=':')}/tag?" + urlencode({"repo": repository, "tag": tag})
        for _ in self.lines(path, silence_s=_TOOL_S):
            pass

    def image(self, name: str) -> dict[str, Any] | None:
        """An image that this node has; None where it has none of that name.

        Raises:
            AgentError: The engine cannot be reached.
            RefusedError: It answered with an error.
        """
        try:
            found = self.get(f"/images/{quote(name, safe='/:@')}/json")
        except RefusedError as error:
            if error.status == _MISSING:
                return None
            raise
        with malformed_as(_senseless):
            text(found["Id"])
            text(found["Architecture"])
            return mapping(found)

    def save(self, image_id: str, *, silence_s: float) -> Iterator[bytes]:
        """The archive of an image, in pieces.

        Raises:
            AgentError: The engine cannot be reached.
            RefusedError: It answered with an error.
            OSError: It fell silent.
        """
        connection = self._open(silence_s)
        try:
            connection.request("GET", f"/images/{quote(image_id, safe=':')}/get")
            answer = connection.getresponse()
            if answer.status >= _REFUSED:
                _checked(answer.status, answer.read())
            yield from iter(lambda: answer.read(_PIECE), b"")
        finally:
            connection.close()

    def load(self, archive: Iterator[bytes], *, silence_s: float) -> None:
        """Take in the images of an archive.

        Raises:
            AgentError: The engine cannot be reached, or the archive does not come.
            RefusedError: It answered with an error.
            OSError: It fell silent.
        """
        for line in self.lines("/images/load?quiet=1", silence_s=silence_s, body=archive):
            if "error" in line:
                raise RefusedError(0, str(line["error"]))

    def lines(
        self, path: str, *, silence_s: float, auth: str = "", body: Iterator[bytes] | None = None
    ) -> Iterator[dict[str, Any]]:
        """What a POST streams, object by object. It is cut when nothing came for `silence_s`, never before.

        Raises:
            AgentError: The engine cannot be reached.
            RefusedError: It answered with an error.
            OSError: It fell silent.
        """
        connection = self._open(silence_s)
        try:
            # Without a length known beforehand, the library sends the pieces as they come.
            connection.request("POST", path, body=body, headers=_headers(auth))
            answer = connection.getresponse()
            if answer.status >= _REFUSED:
                _checked(answer.status, answer.read())
            for line in iter(answer.readline, b""):
                if line.strip():
                    yield parsed_object(line)
        finally:
            connection.close()

    def _open(self, timeout_s: float) -> _Connection:
        connection = _Connection(self._path, timeout_s)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise self._silent(error) from error
        return connection

    def _silent(self, error: Exception) -> AgentError:
        if isinstance(error, PermissionError):
            who, group = _user(), _group_of(self._path)
            return AgentError(
                f"{who} may not use Docker on this node: no permission for {self._path}",
                code="no-docker",
                hint=f"on the node: sudo usermod -aG {shlex.quote(group)} {shlex.quote(who)}, then log in anew",
            )
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        hint = "on the node: sudo systemctl start docker"
        return AgentError(f"no Docker engine answers at {self._path}: {why}", code="no-docker", hint=hint)


def locate() -> DockerEndpoint:
    """Find client and engine: by DOCKER_HOST, by the client's own context, else where it usually is.

    Raises:
        AgentError: There is no client, or the engine is on another machine.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise AgentError(
            "there is no docker on this node",
            code="no-docker",
            hint="install it (apt-get install docker.io), or use environment.python",
        )
    host = os.environ.get("DOCKER_HOST") or _of_context(docker) or _USUAL
    if not host.startswith(_UNIX):
        raise AgentError(
            f"the Docker engine at {host} is not this node's own", code="no-docker", hint="unset DOCKER_HOST there"
        )
    return DockerEndpoint(docker, host)


def checked(engine: Engine) -> dict[str, Any]:
    """The engine's own account of itself.

    Raises:
        AgentError: It cannot be used, or is too old.
    """
    with malformed_as(_senseless):
        version, info = mapping(engine.get("/version")), mapping(engine.get("/info"))
        api = tuple(int(part) for part in str(version["ApiVersion"]).split("."))
        text(version["Version"])
    if api < _OLDEST:
        raise AgentError(
            f"Docker {version['Version']} on this node is too old", code="no-docker", hint="20.10 or later is needed"
        )
    return {**info, "Version": version["Version"]}


def _senseless(why: str) -> AgentError:
    message = f"the Docker engine's answer makes no sense: {why}"
    return AgentError(message, code="no-docker", hint="is it Docker, 20.10 or later, that answers there?")


def _of_context(docker: str) -> str:
    """The engine of the client's context, as rootless Docker sets it; empty where the client does not say."""
    if not os.path.exists(os.path.join(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"), "contexts")):
        return ""
    argv = [docker, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
    try:
        shown = subprocess.run(argv, capture_output=True, text=True, timeout=_TOOL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return shown.stdout.strip() if shown.returncode == 0 else ""


def _headers(auth: str) -> dict[str, str]:
    return {"X-Registry-Auth": auth} if auth else {}


def _checked(status: int, body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        value = parsed(body or b"{}")
    except ValueError:
        value = {"message": body.decode("utf-8", "replace").strip()}
    if status >= _REFUSED:
        message = value.get("message") if isinstance(value, dict) else ""
        raise RefusedError(status, str(message or f"status {status}"))
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
