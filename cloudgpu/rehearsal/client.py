"""Find, start, query, configure, stop and delete a state home's rehearsal cloud, without importing moto or boto3."""

import contextlib
import http.client
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cloudgpu.clock import Clock, SystemClock
from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import CloudGpuError, NewerFormatError, RehearsalError, StateError
from cloudgpu.paths import Home, ensure_writable
from cloudgpu.rehearsal.layout import ENDPOINT_FORMAT, RehearsalFiles, record_ended_instances, running_nodes
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient
from cloudgpu.rehearsal.server import process, sigv4
from cloudgpu.rehearsal.server.control import exchange
from cloudgpu.rehearsal.simulated_time import clock_ahead
from cloudgpu.text import command

_START_LIMIT_S = 60.0
_RESPONSE_LIMIT_S = 30.0
_HEALTH_LIMIT_S = 3.0
_OK = 200
_SERVER_ERROR = 500
_RESTART = "restart it: `cloudgpu rehearsal stop`, then `cloudgpu rehearsal start`"
_EXIT_LIMIT_S = 20.0


@dataclass(frozen=True)
class RehearsalClient:
    """A running rehearsal cloud: its address and the user's access key."""

    url: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str = "us-east-1"
    pid: int = 0


@dataclass(frozen=True)
class NodeInfo:
    """A simulated instance.

    Until the instance has booted, `address` and `host_key` are empty and `port` is 0. `host_key` is the fingerprint of
    the SSH host key (`SHA256:...`).
    """

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
    """Status of the rehearsal cloud.

    Attributes:
        cloud: The running cloud, or None.
        nodes: Every instance that is not terminated.
        regions: Names of the regions that contain resources.
        resident_mib: Resident memory of the server, in MiB.
        idle_stop_at: Time at which the server stops unless it receives an AWS API call; None while nodes exist
            or if no cloud is running.
        clock_ahead: How far `rehearsal advance` has moved the simulated clock ahead of this machine's clock.
    """

    cloud: RehearsalClient | None
    nodes: tuple[NodeInfo, ...] = ()
    regions: tuple[str, ...] = ()
    resident_mib: float = 0.0
    idle_stop_at: datetime | None = None
    clock_ahead: timedelta = timedelta(0)


def ensure_running(
    home: Home, clock: Clock | None = None, *, envs: Path | None = None, idle_minutes: float | None = None
) -> RehearsalClient:
    """Return the state home's rehearsal cloud, starting the server if necessary. Concurrent calls start one server.

    Args:
        home: State home of the cloud.
        clock: Clock for the start deadline.
        envs: Python environments shared by the nodes; default `<home>/envs`. Ignored if the cloud is already running.
        idle_minutes: Idle time before the cloud stops. Ignored if the cloud is already running.
    """
    cloud = find_running(home)
    if cloud is not None:
        return cloud
    clock = clock or SystemClock()
    files = RehearsalFiles.of(home.ensure())
    with process.hold_start_lock(files):
        cloud = find_running(home)
        return cloud if cloud is not None else _start(home, files, clock, process.server_options(envs, idle_minutes))


def find_running(home: Home) -> RehearsalClient | None:
    """Return the state home's rehearsal cloud if it is running and ready, or None."""
    files = RehearsalFiles.of(home)
    cloud = _recorded(files)
    if cloud is None:
        return None
    health = _health(cloud)
    return cloud if health is not None and health["ready"] and not health["failure"] else None


def stop(home: Home) -> bool:
    """Stop the server and its nodes. Return False if neither a server nor a node host was running."""
    files, clock = RehearsalFiles.of(home), SystemClock()
    host = NodeHostClient(files.nodes)
    was_running = process.running_server_pid(files) is not None or host.running()
    while (cloud := _responding(files, clock)) is not None or host.running():
        was_running = True
        if cloud is None:
            # The server exited without its nodes. Only a server can stop them and record that they stopped.
            cloud = ensure_running(home)
        if _stop_server(cloud, files, clock):
            break
    # A server that was killed while it stopped leaves a node host that is still stopping its nodes.
    process.wait_while(host.exiting, clock, f"the node host of {files.nodes} did not exit", files)
    return was_running


def _responding(files: RehearsalFiles, clock: Clock) -> RehearsalClient | None:
    """Return the server that responds, or None if there is none.

    Waits for a server that is starting, is stopping or has to rewrite its damaged endpoint file.
    """
    found: list[RehearsalClient] = []

    def undecided() -> bool:
        cloud = _recorded(files)
        if cloud is not None and _health(cloud) is not None:
            found.append(cloud)
        return not found and process.running_server_pid(files) is not None

    process.wait_while(undecided, clock, "the rehearsal server did not respond", files)
    return found[0] if found else None


def _stop_server(cloud: RehearsalClient, files: RehearsalFiles, clock: Clock) -> bool:
    """Stop a server, and wait until it has exited. Return False if it exited before the call, so its nodes may run."""
    try:
        request_stop(cloud)
        received = True
    except RehearsalError:
        if _health(cloud) is not None:
            raise
        received = False  # another command stopped the server
    deadline = clock.monotonic() + process.STOP_LIMIT_S
    # Its main thread may have exited while its other threads still hold the lock.
    while process.is_alive(cloud.pid) or process.running_server_pid(files) == cloud.pid:
        if clock.monotonic() > deadline:
            message = f"the rehearsal server (pid {cloud.pid}) did not stop within {process.STOP_LIMIT_S:.0f} s"
            raise RehearsalError(message, hint=command("kill", str(cloud.pid)))
        clock.sleep(process.POLL_S)
    return received


def request_stop(cloud: RehearsalClient) -> None:
    """Ask the server to stop its nodes and exit, and return before it has. Raises the errors of `call`."""
    call(cloud, "POST", "stop")


def status(home: Home) -> RehearsalStatus:
    """Return the status of the rehearsal cloud without starting it."""
    cloud = find_running(home)
    if cloud is None:
        return RehearsalStatus(None, clock_ahead=clock_ahead(home))
    health = call(cloud, "GET", "health")
    current_nodes = nodes(cloud)
    left = timedelta(seconds=float(health["idle_left_s"]))
    return RehearsalStatus(
        cloud=cloud,
        nodes=current_nodes,
        regions=tuple(health["regions"]),
        resident_mib=float(health["resident_mib"]),
        idle_stop_at=None if current_nodes else SystemClock().now() + left,
        clock_ahead=clock_ahead(home),
    )


def nodes(cloud: RehearsalClient) -> tuple[NodeInfo, ...]:
    """Return every instance that is not terminated."""
    return tuple(NodeInfo(**row) for row in call(cloud, "GET", "nodes")["nodes"])


def list_resources(cloud: RehearsalClient) -> dict[str, list[dict[str, Any]]]:
    """Return the resources that may cost money or be left over, in all regions, grouped by resource type."""
    return dict(call(cloud, "GET", "census"))


def put_faults(cloud: RehearsalClient, rules: Sequence[Mapping[str, Any]]) -> None:
    """Replace the fault rules, reset all counters and release held calls."""
    call(cloud, "PUT", "faults", list(rules))


def faults(cloud: RehearsalClient) -> dict[str, Any]:
    """Return the `rules` with counters, the `held` calls, and the number of `calls` and of `mutating_calls`.

    All numbers are counted since the rules were set.
    """
    return dict(call(cloud, "GET", "faults"))


def put_script(cloud: RehearsalClient, row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace all faults: rules, capacity, quotas, conditions and node faults. Return the active faults."""
    return dict(call(cloud, "PUT", "script", dict(row)))


def script(cloud: RehearsalClient) -> dict[str, Any]:
    """Return the active faults by part, as in a fault script, with the `names` of the scripts that were combined."""
    return dict(call(cloud, "GET", "script"))


def release(cloud: RehearsalClient) -> int:
    """Release held calls and return their number."""
    return int(call(cloud, "POST", "release")["released"])


def put_capacity(cloud: RehearsalClient, table: Mapping[str, int]) -> None:
    """Replace the instance limits, such as `{"us-east-1c/p3dn.24xlarge/on-demand": 0}`. Keys may contain `*`."""
    call(cloud, "PUT", "capacity", dict(table))


def put_quotas(cloud: RehearsalClient, table: Mapping[str, int]) -> None:
    """Replace the quotas, in vCPUs, such as `{"us-east-1/p/on-demand": 96}`. Keys may contain `*`."""
    call(cloud, "PUT", "quotas", dict(table))


def put_prices(cloud: RehearsalClient, table: Mapping[str, str]) -> None:
    """Replace the prices, in USD/hour, such as `{"us-east-1/p3dn.24xlarge/on-demand": "29.5"}`.

    Keys may contain `*`.
    """
    call(cloud, "PUT", "prices", dict(table))


def advance(cloud: RehearsalClient, seconds: float) -> None:
    """Advance the clock for power-off timers, spot interruptions and schedules by this many seconds."""
    call(cloud, "POST", "advance", {"seconds": seconds})


def call(
    cloud: RehearsalClient, method: str, name: str, value: object = None, *, limit_s: float = _RESPONSE_LIMIT_S
) -> Any:  # noqa: ANN401 - JSON
    """Send one control call and return its result."""
    body = b"" if value is None else json.dumps(value).encode()
    try:
        address, secret = cloud.url.removeprefix("http://"), cloud.secret_access_key
        status_code, response = exchange(address, secret, method, f"/_cloudgpu/{name}", body, limit_s)
    except (OSError, http.client.HTTPException, ValueError) as err:
        message = f"the rehearsal cloud at {cloud.url} does not respond: {err}"
        raise RehearsalError(message, hint="cloudgpu rehearsal start") from err
    if status_code != _OK:
        message = f"the rehearsal cloud rejected the {name} call: {response.get('error', status_code)}"
        hint = _RESTART if status_code >= _SERVER_ERROR else "see docs/reference/faults.md for the accepted values"
        raise RehearsalError(message, hint=hint)
    return response


def _recorded(files: RehearsalFiles) -> RehearsalClient | None:
    """Return the cloud recorded in the endpoint file; its server may have exited."""
    try:
        row = ENDPOINT_FORMAT.read(files.endpoint)
        key = sigv4.load(files.keys).caller
        if not str(row["url"]).startswith("http://127.0.0.1:"):
            return None
        return RehearsalClient(str(row["url"]), key.access_key_id, key.secret_access_key, pid=int(row["pid"]))
    except NewerFormatError:
        raise
    except (OSError, *MALFORMED, CloudGpuError):
        return None


def _health(cloud: RehearsalClient) -> dict[str, Any] | None:
    """Return the server's health, or None if the server does not respond or another process responds on its port."""
    try:
        health = call(cloud, "GET", "health", limit_s=_HEALTH_LIMIT_S)
    except RehearsalError:
        return None
    return dict(health) if int(health.get("pid", 0)) == cloud.pid else None


def _start(home: Home, files: RehearsalFiles, clock: Clock, options: Sequence[str]) -> RehearsalClient:
    ensure_writable(files.root, process.START_BYTES)
    pid, lost_lock = 0, False
    deadline = clock.monotonic() + _START_LIMIT_S
    while clock.monotonic() < deadline:
        cloud = find_running(home)
        if cloud is not None:
            return cloud
        # Another server that holds the lock is starting, because the command that started it was killed, or stopping.
        holder = process.running_server_pid(files)
        lost_lock = lost_lock or (pid != 0 and holder not in (None, 0, pid))
        if holder is None and not (pid and process.is_alive(pid)):
            if pid and not lost_lock:
                raise process.start_error(files)
            files.failure.unlink(missing_ok=True)
            sigv4.repair(files.keys, saved_key_id(files))
            pid, lost_lock = process.spawn(home, files, options), False
            deadline = clock.monotonic() + _START_LIMIT_S
        clock.sleep(process.POLL_S)
    message = f"the rehearsal server did not respond within {_START_LIMIT_S:.0f} s: {process.last_log_lines(files.log)}"
    raise RehearsalError(message, hint=f"see {command(str(files.log))}")


def saved_key_id(files: RehearsalFiles) -> str:
    """Return the access key ID in the endpoint file, or an empty string."""
    try:
        return str(ENDPOINT_FORMAT.read(files.endpoint)["access_key_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def reset(home: Home, at: datetime) -> bool:
    """Stop the server and its nodes, and delete all state, even if it is damaged. Return True if anything was deleted.

    The access keys are kept: cluster records identify the cloud by its access key ID, and `down` must still be able to
    remove those records. So is the list of the instances that ended, which `status` reads.

    Args:
        home: The state home.
        at: The current time, at which nodes that are still running end.
    """
    files = RehearsalFiles.of(home)
    if not os.path.lexists(files.root):
        return False
    host = NodeHostClient(files.nodes)
    # If the state is damaged, the server that `stop` starts does not know these nodes.
    running = _running(host) if host.running() else []
    with contextlib.suppress(CloudGpuError):
        # Do not call `stop` if a server holds the lock but does not respond, because `stop` would wait until the start
        # deadline.
        if find_running(home) is not None or process.running_server_pid(files) is None:
            stop(home)
    _kill_server(files)
    running += _stop_nodes(host, files)
    with contextlib.suppress(OSError, CloudGpuError):
        sigv4.repair(files.keys, saved_key_id(files))
    try:
        return _delete(files)
    finally:
        record_ended_instances(files, running, at)  # afterwards, because the disk may have been full


def _kill_server(files: RehearsalFiles) -> None:
    pid = process.running_server_pid(files)
    if pid is None or (pid and process.kill_server(pid, _EXIT_LIMIT_S)):
        return
    message = f"the rehearsal server of {files.root} did not exit"
    raise RehearsalError(message, hint=command("fuser", "-k", str(files.server_lock)))


def _stop_nodes(host: NodeHostClient, files: RehearsalFiles) -> list[str]:
    """Stop nodes that outlived the server, and return the IDs of those that were running.

    A node host started here adopts the nodes of a previous node host.
    """
    instances = files.nodes / "instances"
    running = _running(host) if instances.is_dir() and any(instances.iterdir()) else []
    host.shutdown()
    return running


def _running(host: NodeHostClient) -> list[str]:
    with contextlib.suppress(CloudGpuError):
        return running_nodes(host.list())
    return []


def _delete(files: RehearsalFiles) -> bool:
    try:
        if files.root.is_symlink() or not files.root.is_dir():
            files.root.unlink()
            return True
        kept = {files.keys, *([files.ended_instances] if files.ended_instances.is_file() else [])}
        paths = [path for path in files.root.iterdir() if path not in kept]
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as err:
        message = f"cannot delete {files.root}: {err.strerror}"
        raise StateError(message, hint=command("rm", "-r", str(files.root))) from err
    return bool(paths)
