"""The rehearsal server process: `python -m cloudgpu.rehearsal.server --home DIR`."""

import argparse
import contextlib
import fcntl
import gc
import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from typing import Any

from cloudgpu.clock import Clock, SystemClock
from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import CloudGpuError, RehearsalError, StateError
from cloudgpu.files import SETTINGS_BYTES, open_for_appending, read_json
from cloudgpu.paths import Home
from cloudgpu.rehearsal.aws_api.ec2.market import Market
from cloudgpu.rehearsal.aws_api.world import NodeHost, Parts
from cloudgpu.rehearsal.faults.active import ActiveFaults
from cloudgpu.rehearsal.faults.active_conditions import ActiveConditions, SkewedClock
from cloudgpu.rehearsal.faults.api_faults import FaultRules
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient
from cloudgpu.rehearsal.server import access_keys
from cloudgpu.rehearsal.server.control import Control
from cloudgpu.rehearsal.server.endpoint import Endpoint
from cloudgpu.rehearsal.server.http_message import Application, HttpRequest, HttpResponse, LargeBodyGuard
from cloudgpu.rehearsal.server.http_server import LoopbackServer
from cloudgpu.rehearsal.simulated_time import SimulatedTime
from cloudgpu.rehearsal.state.durable import write_durably

_IDLE_MINUTES = 30.0
_HOUSEKEEPING_S = 2.0
_DRAIN_S = 3.0
_LOCK_TRIES = 10
_LOCK_PAUSE_S = 0.1
_log = logging.getLogger(__name__)


class RehearsalServer:
    """One home's simulated cloud: an HTTP endpoint, its state, and the nodes behind it."""

    def __init__(self, home: Home, host: NodeHost, clock: Clock, *, idle_minutes: float = _IDLE_MINUTES) -> None:
        self._files = RehearsalFiles.of(home)
        self._host = host
        self._clock = clock
        self._idle_s = idle_minutes * 60
        self._lock = threading.RLock()
        self._last_request = clock.monotonic()
        self._stop = threading.Event()
        self._loaded = threading.Event()
        self._end_nodes = False
        self._failure: CloudGpuError | None = None
        self._trouble = ""
        self._cloud: Any = None
        self._row: dict[str, Any] = {}
        self._started = clock.now().isoformat()
        self.keyring = access_keys.load_or_create(self._files.keys)
        self.faults = FaultRules()
        self.market = Market(self._files.market)
        self.behaviour = ActiveConditions(clock)
        self._time = SimulatedTime(self._files.time, clock)
        role = self.keyring.role
        self._parts = Parts(self._files, clock, self.market, host, self._lock, role, self.behaviour, self._time)
        self._http = _bound(self._application, self._guard, self._files.endpoint)
        active_faults = ActiveFaults(self.faults, self.market, self.behaviour, host)
        control = Control(self.keyring.caller.secret_access_key, self.faults, self.market, self, active_faults)
        self._endpoint = Endpoint(
            self._http.port,
            self.keyring,
            control,
            self.faults,
            self._lock,
            SkewedClock(clock, self.behaviour),
            self._ready_cloud,
            self._touched,
        )

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self._http.port

    def run(self) -> None:
        """Serve until told to stop or idle for long enough.

        Raises:
            CloudGpuError: The state cannot be loaded.
        """
        threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True).start()
        threading.Thread(target=self._load, daemon=True).start()
        self._row = {
            "url": f"http://127.0.0.1:{self.port}",
            "pid": os.getpid(),
            "started": self._started,
            "access_key_id": self.keyring.caller.access_key_id,
        }
        write_durably(self._files.endpoint, json.dumps(self._row).encode())
        while not self._stop.wait(_HOUSEKEEPING_S):
            self._try_to_housekeep()
        self._close()
        if self._failure is not None:
            raise self._failure

    def health(self) -> dict[str, Any]:
        """Who this is, whether it is ready, and how long it may idle."""
        return {
            "pid": os.getpid(),
            "home": str(self._files.root),
            "ready": self._loaded.is_set(),
            "failure": self._failure.message if self._failure else "",
            "regions": sorted(self._cloud.regions()) if self._loaded.is_set() and self._cloud else [],
            "idle_left_s": self._idle_s - (self._clock.monotonic() - self._last_request),
            "resident_mib": resident_mib(),
        }

    def nodes(self) -> list[dict[str, Any]]:
        """Every instance that is not terminated."""
        return list(self._ready_cloud().nodes())

    def census(self) -> dict[str, list[dict[str, Any]]]:
        """Everything that costs or lingers."""
        with self._lock:
            found: dict[str, list[dict[str, Any]]] = self._ready_cloud().census()
        return found

    def advance(self, seconds: float) -> None:
        """Move the clock of power-off timers and of schedules, or neither of them.

        Raises:
            ValueError: It would be too far from the machine's.
            CloudGpuError: It cannot be written, or the node host does not answer.
        """
        self._time.advance(seconds)
        try:
            self._host.advance(seconds)
        except Exception:
            self._time.advance(-seconds)
            raise
        self._ready_cloud().carry_out_schedules()

    def request_stop(self) -> None:
        """Stop soon, and end every node: nothing of this cloud runs afterwards."""
        self._end_nodes = True
        self._stop.set()

    def leave(self) -> None:
        """Stop soon and leave the nodes running: the next server of this home takes them over."""
        self._stop.set()

    def _application(self, request: HttpRequest) -> HttpResponse:
        return self._endpoint(request)

    def _guard(self, request: HttpRequest) -> HttpResponse | None:
        return self._endpoint.guard(request)

    def _touched(self) -> None:
        self._last_request = self._clock.monotonic()

    def _ready_cloud(self) -> Any:  # noqa: ANN401 - `SimulatedCloud`, which is imported late
        self._loaded.wait()
        if self._failure is not None:
            raise self._failure
        return self._cloud

    def _load(self) -> None:
        """Import moto and bring the state back; a second of work that the first request waits for."""
        gc.disable()  # nothing of what is imported is garbage, and looking for it takes a fifth of the time
        try:
            importlib.import_module("cloudgpu.rehearsal.server.botocore_models").remember()
            module = importlib.import_module("cloudgpu.rehearsal.aws_api.simulated_cloud")
            cloud = module.SimulatedCloud(self._parts)
            cloud.restore()
            self._cloud = cloud
        except CloudGpuError as err:
            self._failure = err
            self._stop.set()
        except Exception as err:
            self._failure = RehearsalError(f"the rehearsal cloud could not be loaded: {err}")
            self._stop.set()
            raise
        finally:
            gc.enable()
            self._loaded.set()

    def _try_to_housekeep(self) -> None:
        try:
            self._housekeep()
        except StateError as err:
            # Once, not every two seconds: the log may lie on the disk that is full.
            if err.message != self._trouble:
                _log.error("housekeeping failed: %s", err.message)
            self._trouble = err.message
        except Exception:  # noqa: BLE001 - a server that ends over its housekeeping leaves its nodes alone
            _log.exception("housekeeping failed")
        else:
            self._trouble = ""

    def _housekeep(self) -> None:
        if not self._loaded.is_set() or self._failure is not None:
            return
        self._repair_files()
        self._cloud.housekeep()
        idle = self._clock.monotonic() - self._last_request > self._idle_s
        if idle and not self._cloud.nodes():
            _log.info("idle for %.0f s: stopping", self._idle_s)
            self._stop.set()

    def _repair_files(self) -> None:
        """Write anew what commands find this server by, where it was damaged: they cannot tell it to stop otherwise."""
        try:
            intact = read_json(self._files.endpoint, SETTINGS_BYTES) == self._row
        except (OSError, ValueError):
            intact = False
        if not intact and self._files.root.is_dir():
            write_durably(self._files.endpoint, json.dumps(self._row).encode())
        try:
            intact = access_keys.load(self._files.keys) == self.keyring
        except StateError:
            intact = False
        if not intact and self._files.root.is_dir():
            access_keys.write(self._files.keys, self.keyring)

    def _close(self) -> None:
        """Let answers under way go out; the node host goes too unless it still carries nodes."""
        self._http.shutdown()
        self.faults.release()
        self._http.drain(_DRAIN_S)
        self._http.server_close()
        if self._cloud is not None:
            try:
                self._cloud.close(end_nodes=self._end_nodes)
            except StateError as err:  # the nodes end all the same; the next server finds that out by itself
                _log.error("the last changes are not saved: %s", err.message)
        if self._end_nodes or self._cloud is None or not self._cloud.nodes():
            self._host.shutdown()


def resident_mib() -> float:
    """Memory of this process, MiB; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0.0
    return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _bound(application: Application, guard: LargeBodyGuard, endpoint: Path) -> LoopbackServer:
    """Listen on the port of this home's last server where it is free: presigned URLs stay good over a restart."""
    try:
        port = int(read_json(endpoint, SETTINGS_BYTES)["url"].rpartition(":")[2])
        return LoopbackServer(application, guard, port)
    except (OSError, *MALFORMED):
        return LoopbackServer(application, guard)


@contextmanager
def sole_server(files: RehearsalFiles) -> Iterator[None]:
    """Hold the home's server lock; the kernel frees it when this process dies.

    Raises:
        RehearsalError: Another server has it.
    """
    with open_for_appending(files.server_lock) as lock:
        if not _locked(lock):
            message = f"another rehearsal server runs in {files.root}"
            raise RehearsalError(message)
        lock.truncate(0)
        lock.write(str(os.getpid()).encode())
        lock.flush()
        yield


def _locked(lock: BufferedWriter) -> bool:
    """Take the lock. A command that only looks whether a server runs holds it for a moment, so it is tried again."""
    for left in reversed(range(_LOCK_TRIES)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(_LOCK_PAUSE_S)
        else:
            return True
    return False


def _clean_environment() -> None:
    """Take the user's AWS settings away: moto reads them, and a profile that is not there would break it."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MOTO_"))]:
        del os.environ[name]
    os.environ.update(
        MOTO_EC2_LOAD_DEFAULT_AMIS="false", AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull
    )


def _note_failure(files: RehearsalFiles, err: CloudGpuError) -> None:
    """Leave the reason, with its hint, to the command that waits for this server."""
    with contextlib.suppress(StateError):
        write_durably(files.failure, json.dumps({"message": err.message, "hint": err.hint}).encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one server in the foreground; returns the exit status."""
    parser = argparse.ArgumentParser(prog="cloudgpu.rehearsal.server")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--idle-minutes", type=float, default=_IDLE_MINUTES)
    parser.add_argument("--envs", type=Path, default=None)
    options = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.Formatter.converter = time.gmtime
    _clean_environment()
    home = Home(options.home.absolute())
    os.chdir("/")  # hold no directory of the caller's busy
    files = RehearsalFiles.of(home)
    try:
        files.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with sole_server(files):
            host = NodeHostClient(files.nodes, envs=options.envs)
            server = RehearsalServer(home, host, SystemClock(), idle_minutes=options.idle_minutes)
            signal.signal(signal.SIGTERM, lambda *_: server.leave())
            server.run()
    except CloudGpuError as err:
        _log.error("%s", err.message)
        _note_failure(files, err)
        return err.exit_code
    return 0
