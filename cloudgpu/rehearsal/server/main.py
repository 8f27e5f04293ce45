"""The rehearsal server process: `python -m cloudgpu.rehearsal.server --home DIR`."""

import argparse
import contextlib
import fcntl
import functools
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, cast

from cloudgpu.clock import Clock, SystemClock
from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import CloudGpuError, RehearsalError, StateError
from cloudgpu.files import make_private_directory, open_for_appending
from cloudgpu.paths import Home
from cloudgpu.processes import this_system
from cloudgpu.rehearsal.aws_api.interfaces import NodeHost, Parts
from cloudgpu.rehearsal.aws_api.market import Market
from cloudgpu.rehearsal.faults.api_faults import ActiveConditions, FaultRules, SkewedClock
from cloudgpu.rehearsal.layout import (
    ENDPOINT_FORMAT,
    FAILURE_FORMAT,
    RehearsalFiles,
    record_ended_instances,
    running_nodes,
    write_durably,
)
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient
from cloudgpu.rehearsal.server import sigv4
from cloudgpu.rehearsal.server.control import ActiveFaults, ControlApi
from cloudgpu.rehearsal.server.endpoint import EndpointApplication
from cloudgpu.rehearsal.server.http_message import Application, HttpRequest, HttpResponse, LargeBodyGuard
from cloudgpu.rehearsal.server.http_server import LoopbackServer
from cloudgpu.rehearsal.simulated_time import SimulatedTime

if TYPE_CHECKING:
    from cloudgpu.rehearsal.aws_api.simulated_cloud import SimulatedCloud  # imported late, because it loads moto

_IDLE_MINUTES = 30.0
_HOUSEKEEPING_S = 2.0
_DRAIN_S = 3.0
_LOCK_TRIES = 10
_LOCK_RETRY_S = 0.1
_log = logging.getLogger(__name__)


class RehearsalServer:
    """The rehearsal cloud of one state home: HTTP endpoint, state and nodes."""

    def __init__(self, home: Home, host: NodeHost, clock: Clock, *, idle_minutes: float = _IDLE_MINUTES) -> None:
        self._files = RehearsalFiles.of(home)
        self._host = host
        self._clock = clock
        self._idle_s = idle_minutes * 60
        self._lock = threading.RLock()
        self._last_request = clock.monotonic()
        self._stop = threading.Event()
        self._loaded = threading.Event()
        self._terminate_nodes = False
        self._failure: CloudGpuError | None = None
        self._last_failure = ""
        self._cloud: SimulatedCloud | None = None
        self._row: dict[str, Any] = {}
        self.keyring = sigv4.load_or_create(self._files.keys)
        self.faults = FaultRules()
        self.market = Market(self._files.market)
        self.behaviour = ActiveConditions(clock)
        self._time = SimulatedTime(self._files.time, clock)
        self._time.offset()  # reject the file of a newer version now, not when the time is first used
        role = self.keyring.role
        self._parts = Parts(self._files, clock, self.market, host, self._lock, role, self.behaviour, self._time)
        self._http = _create_http_server(self._application, self._guard, self._files.endpoint)
        active_faults = ActiveFaults(self.faults, self.market, self.behaviour, host)
        control = ControlApi(self.keyring.caller.secret_access_key, self.faults, self.market, self, active_faults)
        self._endpoint = EndpointApplication(
            self._http.port,
            self.keyring,
            control,
            self.faults,
            self._lock,
            SkewedClock(clock, self.behaviour),
            self._ready_cloud,
            self._record_request,
        )

    @property
    def port(self) -> int:
        """Port on 127.0.0.1 on which the server listens."""
        return self._http.port

    def run(self) -> None:
        """Serve requests until the server is stopped or idle for too long."""
        threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True).start()
        threading.Thread(target=self._load, daemon=True).start()
        self._row = {
            "url": f"http://127.0.0.1:{self.port}",
            "pid": os.getpid(),
            "access_key_id": self.keyring.caller.access_key_id,
        }
        write_durably(self._files.endpoint, ENDPOINT_FORMAT.encode(self._row))
        while not self._stop.wait(_HOUSEKEEPING_S):
            self._try_to_housekeep()
        self._close()
        if self._failure is not None:
            raise self._failure

    def health(self) -> dict[str, Any]:
        """Return the server's pid, readiness, start-up error, regions, remaining idle time and memory use."""
        return {
            "pid": os.getpid(),
            "ready": self._loaded.is_set(),
            "failure": self._failure.message if self._failure else "",
            "regions": sorted(self._cloud.regions()) if self._loaded.is_set() and self._cloud else [],
            "idle_left_s": self._idle_s - (self._clock.monotonic() - self._last_request),
            "resident_mib": resident_mib(),
        }

    def nodes(self) -> list[dict[str, Any]]:
        """Return every instance that is not terminated."""
        return self._ready_cloud().nodes()

    def list_resources(self) -> dict[str, list[dict[str, Any]]]:
        """Return every billable or leftover resource."""
        with self._lock:
            return self._ready_cloud().list_resources()

    def advance(self, seconds: float) -> None:
        """Advance the clock for node timers and schedules. If the node host fails, schedules keep the old time."""
        self._time.advance(seconds)
        try:
            self._host.advance(seconds)
        except Exception:
            self._time.advance(-seconds)
            raise
        self._ready_cloud().run_due_schedules()

    def request_stop(self) -> None:
        """Request that the server terminate every node and stop."""
        self._terminate_nodes = True
        self._stop.set()

    def stop_keeping_nodes(self) -> None:
        """Request that the server stop but keep the nodes running for the next server of this state home."""
        self._stop.set()

    def _application(self, request: HttpRequest) -> HttpResponse:
        return self._endpoint(request)

    def _guard(self, request: HttpRequest) -> HttpResponse | None:
        return self._endpoint.guard(request)

    def _record_request(self) -> None:
        self._last_request = self._clock.monotonic()

    def _ready_cloud(self) -> "SimulatedCloud":
        """Wait until the cloud is loaded, and return it."""
        self._loaded.wait()
        if self._failure is not None:
            raise self._failure
        return cast("SimulatedCloud", self._cloud)

    def _load(self) -> None:
        """Import moto and restore the state. This takes about a second, and the first request waits for it."""
        gc.disable()  # imports create no garbage, and collection takes a fifth of the time
        try:
            share_ec2_model()
            from cloudgpu.rehearsal.aws_api.simulated_cloud import SimulatedCloud  # noqa: PLC0415

            cloud = SimulatedCloud(self._parts)
            cloud.restore()
            self._cloud = cloud
        except CloudGpuError as err:
            self._failure = err
            self._stop.set()
        except Exception as err:
            self._failure = RehearsalError(f"cannot load the rehearsal cloud: {err}")
            self._stop.set()
            raise
        finally:
            gc.freeze()  # what moto has loaded lives as long as the server, and need not be visited again
            gc.enable()
            self._loaded.set()

    def _try_to_housekeep(self) -> None:
        try:
            self._housekeep()
        except StateError as err:
            # Log the error once, not every two seconds, because the log may be on the full disk.
            if err.message != self._last_failure:
                _log.error("housekeeping failed: %s", err.message)
            self._last_failure = err.message
        except Exception:  # noqa: BLE001 - if housekeeping crashed the server, its nodes would keep running unattended
            _log.exception("housekeeping failed")
        else:
            self._last_failure = ""

    def _housekeep(self) -> None:
        if not self._loaded.is_set() or self._failure is not None or self._cloud is None:
            return
        self._repair_files()
        self._cloud.housekeep()
        idle = self._clock.monotonic() - self._last_request > self._idle_s
        if idle and not self._cloud.nodes():
            _log.info("idle for %.0f s, stopping", self._idle_s)
            self._stop.set()

    def _repair_files(self) -> None:
        """Rewrite the endpoint and key files, which clients need to find and stop this server, if they are damaged."""
        try:
            intact = ENDPOINT_FORMAT.read(self._files.endpoint) == self._row
        except (OSError, ValueError, StateError):
            intact = False
        if not intact and self._files.root.is_dir():
            write_durably(self._files.endpoint, ENDPOINT_FORMAT.encode(self._row))
        try:
            intact = sigv4.load(self._files.keys) == self.keyring
        except StateError:
            intact = False
        if not intact and self._files.root.is_dir():
            sigv4.write(self._files.keys, self.keyring)

    def _close(self) -> None:
        """Finish requests in progress and shut down; the node host keeps running if it still has nodes."""
        self._http.shutdown()
        self.faults.release()
        self._http.drain(_DRAIN_S)
        self._http.server_close()
        stopped_at, ended = self._clock.now(), list[str]()
        if self._cloud is not None:
            if self._terminate_nodes:
                ended = self._cloud.end_nodes(stopped_at)
            try:
                self._cloud.close()
            except StateError as err:  # shut down anyway: the next server reconciles instances with nodes
                _log.error("cannot save the last changes: %s", err.message)
        if self._terminate_nodes or self._cloud is None or not self._cloud.nodes():
            if self._cloud is None:  # its state is not loaded yet, or damaged
                with suppress(CloudGpuError):
                    ended = running_nodes(self._host.list())
            self._host.close()
        record_ended_instances(self._files, ended, stopped_at)


def resident_mib() -> float:
    """Return the resident memory of this process in MiB, or 0 if the system does not report it."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0.0
    return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _create_http_server(application: Application, guard: LargeBodyGuard, endpoint: Path) -> LoopbackServer:
    """Create a server on the port of this state home's previous server or, if that port is taken, on any free port.

    Reusing the port keeps presigned URLs valid across restarts.
    """
    try:
        port = int(ENDPOINT_FORMAT.read(endpoint)["url"].rpartition(":")[2])
        return LoopbackServer(application, guard, port)
    except (OSError, *MALFORMED):
        return LoopbackServer(application, guard)


@contextmanager
def hold_server_lock(files: RehearsalFiles) -> Iterator[BufferedWriter]:
    """Hold the state home's server lock while the block runs, and yield the lock's file."""
    with open_for_appending(files.server_lock) as lock:
        if not _try_lock(lock):
            message = f"another rehearsal server is already running in {files.root}"
            raise RehearsalError(message)
        lock.truncate(0)
        lock.write(f"{os.getpid()} {this_system()} {socket.gethostname()}".encode())
        lock.flush()
        yield lock


def _try_lock(lock: BufferedWriter) -> bool:
    """Retry for about a second to acquire the lock, because commands that check for a server hold it briefly.

    Return True if the lock was acquired.
    """
    for attempts_left in reversed(range(_LOCK_TRIES)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempts_left:
                time.sleep(_LOCK_RETRY_S)
        else:
            return True
    return False


def share_ec2_model() -> None:
    """Make all of botocore's loaders in this process share what they read of EC2.

    Moto loads this model, the largest one, three times, each time with a new loader. Unless they share it, this takes a
    third of the CPU time that the server needs to start and handle its first call. Other models are not shared, because
    clients change theirs: the S3 client removes the bucket from the paths, by which the server finds a request's
    operation.
    """
    from botocore.loaders import JSONFileLoader  # noqa: PLC0415 - loads botocore, while the server already listens

    read = JSONFileLoader.load_file

    @functools.cache
    def read_once(path: str) -> Any:  # noqa: ANN401 - JSON
        return read(JSONFileLoader(), path)

    def load_file(loader: JSONFileLoader, path: str) -> Any:  # noqa: ANN401 - JSON
        return read_once(path) if "ec2" in PurePath(path).parts else read(loader, path)

    JSONFileLoader.load_file = load_file  # type: ignore[method-assign,assignment]


def _clean_environment() -> None:
    """Clear this process's AWS_* and MOTO_* variables: moto reads them, and fails on an unknown AWS_PROFILE."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MOTO_"))]:
        del os.environ[name]
    os.environ.update(
        MOTO_EC2_LOAD_DEFAULT_AMIS="false", AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull
    )


def _save_failure(files: RehearsalFiles, err: CloudGpuError) -> None:
    """Save the error and its hint for the command that is waiting for this server."""
    with contextlib.suppress(StateError):
        write_durably(files.failure, FAILURE_FORMAT.encode({"message": err.message, "hint": err.hint}))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server in the foreground. Return the exit status."""
    parser = argparse.ArgumentParser(prog="cloudgpu.rehearsal.server")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--idle-minutes", type=float, default=_IDLE_MINUTES)
    parser.add_argument("--envs", type=Path, default=None)
    options = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.Formatter.converter = time.gmtime
    _clean_environment()
    home = Home(options.home.absolute())
    os.chdir("/")  # do not keep the caller's directory in use
    files = RehearsalFiles.of(home)
    try:
        make_private_directory(files.root)
        with hold_server_lock(files) as lock:
            # The kernel releases the lock only when this process exits, which is what `rehearsal stop` waits for.
            os.dup(lock.fileno())
            host = NodeHostClient(files.nodes, envs=options.envs)
            server = RehearsalServer(home, host, SystemClock(), idle_minutes=options.idle_minutes)
            signal.signal(signal.SIGTERM, lambda *_: server.stop_keeping_nodes())
            server.run()
    except CloudGpuError as err:
        _log.error("%s", err.message)
        _save_failure(files, err)
        return err.exit_code
    return 0
