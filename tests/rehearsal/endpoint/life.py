"""Server processes on one home, one after the other, that a test may kill."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
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
from cloudgpu.rehearsal.server.access_keys import load

_MODELS = ("ec2", "efs", "iam", "s3", "scheduler", "ssm")


def _serve(root: str, faults: list[dict[str, Any]], prepare: Callable[[], None] | None) -> None:
    """A server in a forked process, where moto is loaded already: starting it costs milliseconds."""
    from cloudgpu.clock import SystemClock
    from cloudgpu.rehearsal.server.main import RehearsalServer
    from tests.rehearsal.fake_nodes import FakeNodeHost

    if prepare is not None:
        prepare()
    home = Home(Path(root))
    mock_random.seed()  # a fork inherits the state of moto's generator, and with it the next ids
    server = RehearsalServer(home, FakeNodeHost(home.root / "nodes.json"), SystemClock())
    server.faults.put(faults)
    signal.signal(signal.SIGTERM, lambda *_: server.leave())
    server.run()


def _warm() -> None:
    """Load once, before the forks, what every server would otherwise read at its first call: a second and more."""
    import cloudgpu.rehearsal.aws_api.simulated_cloud  # noqa: F401

    for name in _MODELS:
        get_service_model(name)
        AccountSpecificBackend.get_session().get_available_regions(name)


class Life:
    """One server process after the other on one home."""

    def __init__(self, root: Path) -> None:
        _warm()
        BackendDict.reset()
        (root / "rehearsal").mkdir(exist_ok=True)
        self.home = Home(root)
        self._context = multiprocessing.get_context("fork")
        self._process: Any = None

    def start(self, faults: list[dict[str, Any]] | None = None, *, prepare: Callable[[], None] | None = None) -> None:
        """Start a server with these faults; `prepare` is called in its process before."""
        self._process = self._context.Process(target=_serve, args=(str(self.home.root), faults or [], prepare))
        self._process.start()
        deadline = time.monotonic() + 30
        while (found := client.find_running(self.home)) is None or found.pid != self._process.pid:
            assert self._process.is_alive(), "the server died at its start"
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def end(self, how: int = signal.SIGTERM) -> None:
        if self._process.is_alive():
            os.kill(self._process.pid, how)
        self._process.join(30)

    def dead(self) -> bool:
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
