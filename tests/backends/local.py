"""The example backend of docs/examples. It uses real directories and processes; nothing is simulated."""

import json
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

from local_backend import LocalBackend

from cloudgpu.processes import process_start
from cloudgpu.state.cluster_record import ClusterRecord
from tests.backends.harness import Files


class LocalHarness:
    """Nodes on this machine. A crash sends SIGKILL to the keeper, and the expiry passes in real time."""

    short_expiry_s = 2
    optional_url = "s3://bucket/data"

    def __init__(self, folder: Path) -> None:
        self.files = Files(folder, "{gpu: 'T4:1', nodes: 2}")
        self.root = folder / "nodes"

    def backend(self) -> LocalBackend:
        return LocalBackend(self.root)

    def unreachable(self) -> LocalBackend:
        (self.files.folder / "file").touch()
        return LocalBackend(self.files.folder / "file" / "nodes")

    def crash(self, record: ClusterRecord, index: int) -> None:
        keeper = int((self.root / record.placement.instance_ids[index] / "pid").read_text())
        os.kill(keeper, signal.SIGKILL)
        while process_start(keeper):
            time.sleep(0.01)

    def expire(self, record: ClusterRecord) -> None:
        time.sleep(max(0.0, (record.lifecycle.expires_at - datetime.now(UTC)).total_seconds()) + 0.5)

    def node_expiries(self, record: ClusterRecord) -> set[datetime]:
        tags = [json.loads((self.root / node / "tag.json").read_text()) for node in record.placement.instance_ids]
        return {datetime.fromtimestamp(tag["expires_epoch_s"], UTC) for tag in tags}

    def resources(self, name: str) -> list[str]:
        marks = [f"LOCAL_NODE={self.root}/slot{n}@{name}".encode() for n in range(4)]
        processes = [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if _contains(path, marks)]
        return [*processes, *(path.name for path in self.root.glob(f"*@{name}"))]

    def close(self) -> None:
        self.files.ledger.engine.dispose()


def _contains(environ: Path, marks: list[bytes]) -> bool:
    try:
        return any(mark in environ.read_bytes().split(b"\0") for mark in marks)
    except OSError:
        return False
