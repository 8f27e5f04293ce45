"""Shared code of the AWS and rehearsal harnesses, which both use the simulated AWS endpoint."""

import json
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cloudgpu.backends.aws.backend import AwsBackend
from cloudgpu.backends.environment import ApiCallLog, BackendEnvironment
from cloudgpu.clock import SystemClock
from cloudgpu.errors import CloudError
from cloudgpu.rehearsal import client
from cloudgpu.settings import Settings, load
from cloudgpu.state.cluster_record import ClusterRecord
from tests.backends.harness import REGION, Files

LIMIT_S = 20


class ShiftedClock(SystemClock):
    """System clock with the same forward offset as the endpoint's clock."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self._ahead_s)

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead_s

    def skip(self, seconds: float) -> None:
        self._ahead_s += seconds


class SleepSkippingClock(ShiftedClock):
    """Clock that advances instead of sleeping, because a deletion waits minutes for the response to a killed launch."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.05))
        self.skip(max(0.0, seconds - 0.05))


class EndpointHarness:
    """Harness for the simulated endpoint. Subclasses provide the backend and the nodes."""

    short_expiry_s = 3600
    optional_url = "s3://conformance/data"

    def __init__(self, folder: Path, target: str, clock: ShiftedClock) -> None:
        self.files = Files(folder, "{instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1]}", clock)
        flags = {"home": str(self.files.home.root), "target": target, "region": REGION, "ssh_cidr": "127.0.0.1/32"}
        self.settings: Settings = load(flags=flags, environ={}, cwd=folder)
        self.environment = BackendEnvironment(
            settings=self.settings,
            home=self.files.home,
            writable_home=lambda: self.files.home,
            records=self.files.records,
            clock=clock,
            environ={},
            known_hosts=(),
            calls=ApiCallLog(None, clock),
            buckets=self.backend,
        )

    @property
    def rehearsal(self) -> client.RehearsalClient:
        found = client.find_running(self.files.home)
        assert found is not None
        return found

    def backend(self) -> AwsBackend:
        raise NotImplementedError

    def unreachable(self) -> AwsBackend:
        def fail() -> Any:
            raise CloudError("the endpoint cannot be reached")

        return AwsBackend((self.settings.target, "AWS"), self.files.home, self.files.clock, fail, fail)

    def let_expire(self, record: ClusterRecord) -> None:
        """Let the expiry pass on the nodes."""
        raise NotImplementedError

    def make_bucket(self) -> None:
        s3 = self.backend().cloud.session(REGION).client("s3")
        s3.create_bucket(Bucket="conformance")
        s3.put_object(Bucket="conformance", Key="data/shard-0", Body=b"1")

    def crash(self, record: ClusterRecord, index: int) -> None:
        self.backend().cloud.terminate(record.placement.region, [record.placement.instance_ids[index]])

    def expire(self, record: ClusterRecord) -> None:
        self.let_expire(record)
        # The server looks for nodes that have powered off every two seconds.
        deadline = time.monotonic() + LIMIT_S
        while "instances" in " ".join(self.resources(record.name)) and time.monotonic() < deadline:
            time.sleep(0.1)

    def resources(self, name: str) -> list[str]:
        found = client.list_resources(self.rehearsal)
        return [f"{kind} {row['id']}" for kind, rows in found.items() for row in rows if _belongs(row, name)]

    def close(self) -> None:
        self.files.ledger.engine.dispose()


def _belongs(row: dict[str, Any], name: str) -> bool:
    return f'"{name}"' in json.dumps(row)
