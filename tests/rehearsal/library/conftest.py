"""The rehearsal cloud that all tests of the fault library share."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.faults import scripts
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient

_RESOURCES = "{{instance_type: {type}, nodes: 2, regions: {regions}, market: {market}}}"


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """The command line, the exit code and the output."""
        return f"cloudgpu {' '.join(self.argv)} exited with {self.code}\n{self.out}\n{self.err}"


@dataclass
class FaultCloud:
    """A rehearsal cloud to which faults are applied, and the commands that use it."""

    workspace: Any

    def run(self, *argv: str, **settings: object) -> CommandResult:
        env = {f"CLOUDGPU_{name.upper()}": str(value) for name, value in settings.items()}
        done = self.workspace.run(*argv, code=None, env=env)
        return CommandResult(argv, done.returncode, done.stdout, done.stderr)

    def ok(self, *argv: str) -> CommandResult:
        done = self.run(*argv)
        assert done.code == 0, done.text
        return done

    def json(self, *argv: str) -> Any:
        return json.loads(self.ok(*argv, "--json").out)

    def apply(self, *names: str, **parameters: object) -> None:
        """Apply faults of the library together."""
        found = [scripts.find_script(name) for name in names]
        combined = scripts.combine_scripts(found, {name: str(value) for name, value in parameters.items()})
        client.put_script(self.workspace.cloud, {"names": list(names), **combined})

    def clear(self) -> None:
        client.put_script(self.workspace.cloud, {})

    def applied_faults(self) -> Mapping[str, Any]:
        return client.script(self.workspace.cloud)

    @property
    def nodes(self) -> tuple[client.NodeInfo, ...]:
        return client.nodes(self.workspace.cloud)

    @property
    def zones(self) -> set[str]:
        return {node.zone for node in self.nodes}

    def until(self, condition: Callable[[], object], limit_s: float = 30.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"the condition was not met within {limit_s:g} s"
            time.sleep(0.02)

    def recipe(self, *, regions: str = "[us-east-1]", market: str = "on-demand", type: str = "p3dn.24xlarge") -> str:
        self.workspace.recipe("plain", resources=_RESOURCES.format(regions=regions, market=market, type=type))
        return "plain"

    def injected_faults(self) -> list[str]:
        """Return the faults injected into existing nodes, with one entry per node and fault."""
        host = NodeHostClient(RehearsalFiles.of(self.workspace.home).nodes)
        existing = {node.instance_id for node in self.nodes}
        return [fault for report in host.list() if report.instance_id in existing for fault in report.befallen]

    def fire_count(self) -> int:
        """Return how often the applied rules and conditions have fired."""
        applied = self.applied_faults()
        return applied["struck"] + sum(rule["fired"] for rule in applied["rules"])

    def check_empty(self) -> None:
        """Check that no resource, recorded cluster or open ledger row remains."""
        assert self.workspace.left() == {}
        assert self.json("status")["clusters"] == []
        assert [row for row in self.json("cost")["rows"] if row["open_entries"]] == []


@pytest.fixture(scope="package")
def shared_fault_cloud(make_workspace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCloud]:
    with make_workspace(tmp_path_factory.mktemp("library")) as workspace:
        yield FaultCloud(workspace)


@pytest.fixture
def fault_cloud(shared_fault_cloud: FaultCloud) -> Iterator[FaultCloud]:
    """The shared cloud without faults. Deletes the clusters that the test leaves and checks that nothing remains."""
    shared_fault_cloud.clear()
    # Otherwise the zone of an earlier fault would be tried last.
    shared_fault_cloud.workspace.home.cooldowns.unlink(missing_ok=True)
    yield shared_fault_cloud
    shared_fault_cloud.clear()
    for cluster in shared_fault_cloud.json("status")["clusters"]:
        shared_fault_cloud.ok("down", cluster["cluster"], "--yes")
    shared_fault_cloud.check_empty()
