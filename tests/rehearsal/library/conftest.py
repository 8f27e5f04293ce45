"""One rehearsal cloud for the whole library of faults."""

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
class Done:
    """How a command ended."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def shown(self) -> str:
        return f"cloudgpu {' '.join(self.argv)} ended with {self.code}\n{self.out}\n{self.err}"


@dataclass
class Stage:
    """A home with its cloud, and what can be done to both."""

    workspace: Any

    def run(self, *argv: str, **settings: object) -> Done:
        env = {f"CLOUDGPU_{name.upper()}": str(value) for name, value in settings.items()}
        done = self.workspace.run(*argv, code=None, env=env)
        return Done(argv, done.returncode, done.stdout, done.stderr)

    def ok(self, *argv: str) -> Done:
        done = self.run(*argv)
        assert done.code == 0, done.shown
        return done

    def json(self, *argv: str) -> Any:
        return json.loads(self.ok(*argv, "--json").out)

    def apply(self, *names: str, **given: object) -> None:
        found = [scripts.find_script(name) for name in names]
        whole = scripts.combine_scripts(found, {name: str(value) for name, value in given.items()})
        client.put_script(self.workspace.cloud, {"names": list(names), **whole})

    def clear(self) -> None:
        client.put_script(self.workspace.cloud, {})

    def in_force(self) -> Mapping[str, Any]:
        return client.script(self.workspace.cloud)

    @property
    def nodes(self) -> tuple[client.NodeInfo, ...]:
        return client.nodes(self.workspace.cloud)

    @property
    def zones(self) -> set[str]:
        return {node.zone for node in self.nodes}

    def until(self, holds: Callable[[], object], limit_s: float = 30.0) -> None:
        deadline = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.02)

    def recipe(self, *, regions: str = "[us-east-1]", market: str = "on-demand", type: str = "p3dn.24xlarge") -> str:
        self.workspace.recipe("plain", resources=_RESOURCES.format(regions=regions, market=market, type=type))
        return "plain"

    def injected_faults(self) -> list[str]:
        """What has struck the nodes that stand, one entry a node and fault."""
        host = NodeHostClient(RehearsalFiles.of(self.workspace.home).nodes)
        living = {node.instance_id for node in self.nodes}
        return [deed for report in host.list() if report.instance_id in living for deed in report.befallen]

    def felt(self) -> int:
        """How often a rule or a condition has struck since it was applied."""
        now = self.in_force()
        return now["struck"] + sum(rule["fired"] for rule in now["rules"])

    def check_nothing_is_left(self) -> None:
        assert self.workspace.left() == {}
        assert self.json("status")["clusters"] == []
        assert [row for row in self.json("cost")["rows"] if row["open_entries"]] == []


@pytest.fixture(scope="package")
def one_stage(make_workspace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with make_workspace(tmp_path_factory.mktemp("library")) as workspace:
        yield Stage(workspace)


@pytest.fixture
def stage(one_stage: Stage) -> Iterator[Stage]:
    """The cloud without faults; each test leaves nothing in it."""
    one_stage.clear()
    one_stage.workspace.home.cooldowns.unlink(missing_ok=True)  # or the zone of an earlier fault is tried last
    yield one_stage
    one_stage.clear()
    for cluster in one_stage.json("status")["clusters"]:
        one_stage.ok("down", cluster["cluster"], "--yes")
    one_stage.check_nothing_is_left()
