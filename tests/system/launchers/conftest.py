"""Runs of recipes on the simulated hosts."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from textwrap import dedent

import pytest

from cloudgpu.launch.inventory import Inventory, Node
from tests.hosts.fixtures import lab_hosts
from tests.hosts.lab import Host, Lab

__all__ = ["lab_hosts"]

REPOSITORY = Path(__file__).parents[3]


@dataclass
class Launches:
    """Runs recipes on the hosts of a lab, with all files in one folder."""

    lab: Lab
    folder: Path
    number: count
    user: str = ""
    gpus: int = 2

    def write_request(self, recipe: str, hosts: tuple[Host, ...], **files: str) -> Path:
        """Write a recipe, its files and the request of the driver, and return the path of the request."""
        run_id = f"run-{next(self.number)}"
        work = self.folder / run_id
        work.mkdir()
        (work / "recipe.yaml").write_text(dedent(recipe))
        for name, text in files.items():
            (work / name.replace("_", ".")).write_text(dedent(text))
        inventory = Inventory("lab", tuple(self._node(index, host) for index, host in enumerate(hosts)))
        request = {
            "recipe": str(work / "recipe.yaml"),
            "inventory": inventory.as_json(),
            "run_id": run_id,
            "key": str(self.lab.key),
            "home": str(self.folder / "home"),
        }
        path = work.with_suffix(".json")
        path.write_text(json.dumps(request))
        return path

    def _node(self, index: int, host: Host) -> Node:
        return Node(
            index=index,
            instance_id=host.name,
            address=host.address,
            port=host.port,
            user=self.user or host.user,
            host_keys=(host.fingerprint,),
            private_address=host.private_address,
            instance_type="lab",
            zone="",
            gpu="V100",
            gpus=self.gpus,
            simulated=False,
        )

    def argv(self, request: Path) -> list[str]:
        return [sys.executable, "-m", "tests.system.launchers.driver", str(request)]

    def run(self, recipe: str, *hosts: Host, env: dict[str, str] | None = None, **files: str) -> "RunResult":
        request = self.write_request(recipe, hosts, **files)
        done = self.lab.client(self.argv(request), env=self.environment(env or {}), cwd=REPOSITORY, check=False)
        messages = [json.loads(line) for line in done.stdout.splitlines()]
        assert messages, done.stderr
        return RunResult(request.stem, messages, done.stderr)

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", "HOME": str(self.folder), **more}


@dataclass(frozen=True)
class RunResult:
    """Messages of the driver and its standard error."""

    run_id: str
    messages: list[dict]
    stderr: str

    @property
    def lines(self) -> list[str]:
        return sorted(message["line"] for message in self.messages if "line" in message)

    @property
    def verdict(self) -> dict:
        assert "state" in self.messages[-1], (self.messages, self.stderr)
        return self.messages[-1]


@pytest.fixture(scope="module")
def launches_on(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Launches]:
    """Function that returns a runner for the hosts of a lab."""
    return lambda lab, **more: Launches(lab, tmp_path_factory.mktemp("launches"), count(), **more)


@pytest.fixture(scope="module")
def launches(lab_hosts: Lab, launches_on: Callable[..., Launches]) -> Launches:
    return launches_on(lab_hosts)
