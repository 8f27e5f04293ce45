"""A rehearsal server in a separate process that a test can kill and restart with the same state home."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from moto.core.base_backend import AccountSpecificBackend, BackendDict
from moto.core.utils import get_service_model
from moto.moto_api._internal import mock_random

from cloudgpu.paths import Home
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.server.sigv4 import load

_MODELS = ("ec2", "efs", "iam", "s3", "scheduler", "ssm")


def _serve(root: str, faults: list[dict[str, Any]], prepare: Callable[[], None] | None) -> None:
    """Run a server in a forked process. It starts within milliseconds because moto is already loaded."""
    from cloudgpu.clock import SystemClock
    from cloudgpu.rehearsal.server.main import RehearsalServer, hold_server_lock
    from tests.rehearsal.fake_nodes import FakeNodeHost

    if prepare is not None:
        prepare()
    home = Home(Path(root))
    mock_random.seed()  # otherwise every fork would generate the same IDs
    server = RehearsalServer(home, FakeNodeHost(home.root / "nodes.json"), SystemClock())
    server.faults.put(faults)
    signal.signal(signal.SIGTERM, lambda *_: server.stop_keeping_nodes())
    with hold_server_lock(RehearsalFiles.of(home)):
        server.run()


def _preload() -> None:
    """Load the service models once before forking, which saves each server more than a second at its first call."""
    import cloudgpu.rehearsal.aws_api.simulated_cloud  # noqa: F401

    for name in _MODELS:
        get_service_model(name)
        AccountSpecificBackend.get_session().get_available_regions(name)


class ServerProcess:
    """At most one running server, which can be restarted with the same state home."""

    def __init__(self, root: Path) -> None:
        _preload()
        BackendDict.reset()
        (root / "rehearsal").mkdir(exist_ok=True)
        self.home = Home(root)
        self._context = multiprocessing.get_context("fork")
        self._process: Any = None

    def start(self, faults: list[dict[str, Any]] | None = None, *, prepare: Callable[[], None] | None = None) -> None:
        """Start a server with the given faults. `prepare` is called first, in the new process."""
        self._process = self._context.Process(target=_serve, args=(str(self.home.root), faults or [], prepare))
        self._process.start()
        deadline = time.monotonic() + 30
        while (found := client.find_running(self.home)) is None or found.pid != self._process.pid:
            assert self._process.is_alive(), "the server died at its start"
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def end(self, signal_number: int = signal.SIGTERM) -> None:
        """Send a signal to the server and wait until it exits."""
        if self._process.is_alive():
            with suppress(ProcessLookupError):  # a command under test may have reaped it
                os.kill(self._process.pid, signal_number)
        self._process.join(30)

    def was_killed(self) -> bool:
        """Wait until the server exits and return whether SIGKILL ended it."""
        self._process.join(30)
        return self._process.exitcode == -signal.SIGKILL

    @property
    def cloud(self) -> client.RehearsalClient:
        found = client.find_running(self.home)
        assert found is not None
        return found

    def aws(self, service: str, **config: Any) -> Any:
        key = load(RehearsalFiles.of(self.home).keys).caller
        return boto3.client(
            service,
            region_name="us-east-1",
            endpoint_url=self.cloud.url,
            aws_access_key_id=key.access_key_id,
            aws_secret_access_key=key.secret_access_key,
            config=Config(retries={"total_max_attempts": 1}, **config),
        )
