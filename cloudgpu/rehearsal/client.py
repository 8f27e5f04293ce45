"""Find, start, ask and stop this home's rehearsal cloud. Loads neither moto nor boto3."""

import http.client
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cloudgpu.clock import Clock, SystemClock
from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import CloudGpuError, RehearsalError
from cloudgpu.files import SETTINGS_BYTES, parse_json, read_json
from cloudgpu.paths import Home, ensure_writable
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient
from cloudgpu.rehearsal.server import access_keys, process
from cloudgpu.rehearsal.server.access_keys import load
from cloudgpu.rehearsal.server.control_auth import HEADER, seal
from cloudgpu.text import command

_START_LIMIT_S = 60.0
_START_BYTES = 1 << 16
"""More than a server writes before it takes its first call."""
_STOP_LIMIT_S = 60.0
_POLL_S = 0.02
_ANSWER_LIMIT_S = 30.0
_SHOWN = 300
_HEALTH_LIMIT_S = 3.0
_OK = 200
_SERVER_ERROR = 500
_AGAIN = "`cloudgpu rehearsal stop`, then start it again"


@dataclass(frozen=True)
class Cloud:
    """A running rehearsal cloud and the key that its owner calls it with."""

    url: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str = "us-east-1"
    pid: int = 0


@dataclass(frozen=True)
class NodeInfo:
    """A simulated instance. Address and port are empty until its node listens; `host_key` is `SHA256:...`."""

    instance_id: str
    instance_type: str
    region: str
    zone: str
    state: str
    address: str
    port: int
    user: str
    host_key: str
    cluster: str
    simulated: bool = True


@dataclass(frozen=True)
class RehearsalStatus:
    """What runs now. `resident_mib` is the server's memory; `idle_stop_at` is None while instances keep it up."""

    cloud: Cloud | None
    nodes: tuple[NodeInfo, ...] = ()
    regions: tuple[str, ...] = ()
    resident_mib: float = 0.0
    idle_stop_at: datetime | None = None


def ensure(
    home: Home, clock: Clock | None = None, *, envs: Path | None = None, idle_minutes: float | None = None
) -> Cloud:
    """Return the home's cloud, starting it when it does not run; exactly one even when two processes race.

    Args:
        home: Whose cloud.
        clock: Waits for the start.
        envs: Python environments that the nodes share, `<home>/envs` unless given; counts when it is started now.
        idle_minutes: When it stops by itself without nodes and requests; counts when it is started now.

    Raises:
        StateError: The home cannot be written.
        RehearsalError: The server died or did not answer in time; the message ends with its last lines.
    """
    found = running(home)
    if found is not None:
        return found
    clock = clock or SystemClock()
    files = RehearsalFiles.of(home.ensure())
    with process.one_starter(files):
        found = running(home)
        return found if found is not None else _start(home, files, clock, process.options(envs, idle_minutes))


def running(home: Home) -> Cloud | None:
    """The home's cloud if it runs, is ready and is the home's own, else None."""
    files = RehearsalFiles.of(home)
    cloud = _recorded(files)
    if cloud is None:
        return None
    health = _health(cloud)
    return cloud if health is not None and health["ready"] and not health["failure"] else None


def stop(home: Home) -> bool:
    """End the server and its nodes; returns whether there was one.

    Raises:
        RehearsalError: It does not end.
    """
    files = RehearsalFiles.of(home)
    cloud = _recorded(files)
    health = _health(cloud) if cloud is not None else None
    if health is None and (NodeHostClient(files.nodes).running() or process.holder(files) is not None):
        # The server was killed and its nodes go on: only a server can end them and keep the books of it. Or it runs,
        # and the files that it is found by are damaged: it writes them anew.
        cloud = ensure(home)
        health = _health(cloud)
    if cloud is None or health is None:
        return False
    call(cloud, "POST", "stop")
    clock = SystemClock()
    deadline = clock.monotonic() + _STOP_LIMIT_S
    while process.alive(int(health["pid"])):
        if clock.monotonic() > deadline:
            message = f"the rehearsal server (process {health['pid']}) does not stop"
            raise RehearsalError(message, hint=command("kill", health["pid"]))
        clock.sleep(_POLL_S)
    return True


def status(home: Home) -> RehearsalStatus:
    """What runs now; never starts anything.

    Raises:
        RehearsalError: The server stopped answering half-way.
    """
    cloud = running(home)
    if cloud is None:
        return RehearsalStatus(None)
    health = call(cloud, "GET", "health")
    found = nodes(cloud)
    left = timedelta(seconds=float(health["idle_left_s"]))
    return RehearsalStatus(
        cloud=cloud,
        nodes=found,
        regions=tuple(health["regions"]),
        resident_mib=float(health["resident_mib"]),
        idle_stop_at=None if found else SystemClock().now() + left,
    )


def nodes(cloud: Cloud) -> tuple[NodeInfo, ...]:
    """Every instance that is not terminated.

    Raises:
        RehearsalError: The server does not answer.
    """
    return tuple(NodeInfo(**row) for row in call(cloud, "GET", "nodes")["nodes"])


def census(cloud: Cloud) -> dict[str, list[dict[str, Any]]]:
    """Everything that costs money or lingers, by kind, over all regions.

    Raises:
        RehearsalError: The server does not answer.
    """
    return dict(call(cloud, "GET", "census"))


def put_faults(cloud: Cloud, rules: Sequence[Mapping[str, Any]]) -> None:
    """Replace the fault script; counters start at zero and held calls go on.

    Raises:
        RehearsalError: A rule makes no sense, or the server does not answer.
    """
    call(cloud, "PUT", "faults", list(rules))


def faults(cloud: Cloud) -> dict[str, Any]:
    """`rules` with their counters, `held` calls, `calls` and `mutating_calls` since the rules were put.

    Raises:
        RehearsalError: The server does not answer.
    """
    return dict(call(cloud, "GET", "faults"))


def put_script(cloud: Cloud, row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace everything that goes wrong: rules, capacity, quotas, conditions, node faults; returns what holds now.

    Raises:
        RehearsalError: A part makes no sense, or the server does not answer.
    """
    return dict(call(cloud, "PUT", "script", dict(row)))


def script(cloud: Cloud) -> dict[str, Any]:
    """What goes wrong now, by part, and the `names` it was applied by.

    Raises:
        RehearsalError: The server does not answer.
    """
    return dict(call(cloud, "GET", "script"))


def release(cloud: Cloud) -> int:
    """Let held calls go on; returns how many there were.

    Raises:
        RehearsalError: The server does not answer.
    """
    return int(call(cloud, "POST", "release")["released"])


def put_capacity(cloud: Cloud, table: Mapping[str, int]) -> None:
    """Limit instances: `{"us-east-1c/p3dn.24xlarge/on-demand": 0}`; parts may be `*`.

    Raises:
        RehearsalError: A row makes no sense, or the server does not answer.
    """
    call(cloud, "PUT", "capacity", dict(table))


def put_quotas(cloud: Cloud, table: Mapping[str, int]) -> None:
    """Limit vCPUs: `{"us-east-1/p/on-demand": 96}`; parts may be `*`.

    Raises:
        RehearsalError: A row makes no sense, or the server does not answer.
    """
    call(cloud, "PUT", "quotas", dict(table))


def put_prices(cloud: Cloud, table: Mapping[str, str]) -> None:
    """Change prices: `{"us-east-1/p3dn.24xlarge/on-demand": "29.5"}`, USD an hour; parts may be `*`.

    Raises:
        RehearsalError: A row makes no sense, or the server does not answer.
    """
    call(cloud, "PUT", "prices", dict(table))


def advance(cloud: Cloud, seconds: float) -> None:
    """Move the clock that the nodes' power-off timers follow.

    Raises:
        RehearsalError: The server does not answer.
    """
    call(cloud, "POST", "advance", {"seconds": seconds})


def env_lines(cloud: Cloud) -> list[str]:
    """Shell lines with which any AWS client talks to this cloud."""
    values = {
        "AWS_ENDPOINT_URL": cloud.url,
        "AWS_ACCESS_KEY_ID": cloud.access_key_id,
        "AWS_SECRET_ACCESS_KEY": cloud.secret_access_key,
        "AWS_DEFAULT_REGION": cloud.region,
        "AWS_REGION": cloud.region,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    unset = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_ENDPOINT_URL_EC2")
    return [f"export {name}={shlex.quote(value)}" for name, value in values.items()] + [f"unset {' '.join(unset)}"]


def call(cloud: Cloud, method: str, name: str, value: object = None, *, limit_s: float = _ANSWER_LIMIT_S) -> Any:  # noqa: ANN401 - JSON
    """One control call.

    Raises:
        RehearsalError: The server does not answer, or refuses.
    """
    body = b"" if value is None else json.dumps(value).encode()
    try:
        status_code, answer = _exchange(cloud, method, f"/_cloudgpu/{name}", body, limit_s)
    except (OSError, http.client.HTTPException, ValueError) as err:
        message = f"the rehearsal cloud at {cloud.url} does not answer: {err}"
        raise RehearsalError(message, hint="cloudgpu rehearsal start") from err
    if status_code != _OK:
        message = f"the rehearsal cloud refused {name}: {answer.get('error', status_code)}"
        hint = _AGAIN if status_code >= _SERVER_ERROR else "docs/reference/faults.md says what is accepted"
        raise RehearsalError(message, hint=hint)
    return answer


def _exchange(cloud: Cloud, method: str, target: str, body: bytes, limit_s: float) -> tuple[int, Any]:
    address = cloud.url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=limit_s)
    try:
        headers = {HEADER: seal(cloud.secret_access_key, method, target, body), "Content-Type": "application/json"}
        connection.request(method, target, body=body or None, headers=headers)
        response = connection.getresponse()
        content = response.read()
        try:
            return response.status, parse_json(content)
        except ValueError:
            return response.status, {"error": content.decode(errors="replace").strip()[:_SHOWN]}
    finally:
        connection.close()


def _recorded(files: RehearsalFiles) -> Cloud | None:
    """The cloud that the last server wrote down; it may be dead."""
    try:
        row = read_json(files.endpoint, SETTINGS_BYTES)
        key = load(files.keys).caller
        if not str(row["url"]).startswith("http://127.0.0.1:"):
            return None
        return Cloud(str(row["url"]), key.access_key_id, key.secret_access_key, pid=int(row["pid"]))
    except (OSError, *MALFORMED, CloudGpuError):
        return None


def _health(cloud: Cloud) -> dict[str, Any] | None:
    """What the server says of itself, or None when nobody or a stranger listens there."""
    try:
        health = call(cloud, "GET", "health", limit_s=_HEALTH_LIMIT_S)
    except RehearsalError:
        return None
    return dict(health) if int(health.get("pid", 0)) == cloud.pid else None


def _start(home: Home, files: RehearsalFiles, clock: Clock, options: Sequence[str]) -> Cloud:
    ensure_writable(files.root, _START_BYTES)
    files.failure.unlink(missing_ok=True)
    if process.holder(files) is None:
        access_keys.repair(files.keys, known_id(files))
    pid = process.spawn(home, files, options)
    deadline = clock.monotonic() + _START_LIMIT_S
    while clock.monotonic() < deadline:
        found = running(home)
        if found is not None:
            return found
        # The server of a starter that was killed may still be on its way up: ours ended because of it.
        if not process.alive(pid) and process.holder(files) is None:
            found = running(home)
            if found is None:
                raise _ended(files)
            return found
        clock.sleep(_POLL_S)
    message = f"the rehearsal server did not answer within {_START_LIMIT_S:.0f} s: {process.last_lines(files.log)}"
    raise RehearsalError(message, hint=f"its log is {files.log}")


def known_id(files: RehearsalFiles) -> str:
    """The access key id that the last server wrote beside its address."""
    try:
        return str(read_json(files.endpoint, SETTINGS_BYTES)["access_key_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _ended(files: RehearsalFiles) -> RehearsalError:
    """Why a server ended at its start: in its own words, else the end of its log.

    Raises:
        StateError: The disk is full, so that the server could leave no words.
    """
    try:
        found = read_json(files.failure, SETTINGS_BYTES)
        return RehearsalError(str(found["message"]), hint=str(found["hint"]))
    except (OSError, ValueError, KeyError, TypeError):
        ensure_writable(files.root, _START_BYTES)
        message = f"the rehearsal server ended: {process.last_lines(files.log)}"
        return RehearsalError(message, hint=f"its log is {files.log}")
