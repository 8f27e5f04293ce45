"""Runs on hosts that each have their own network, hostname and OpenSSH server."""

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
    """A folder for recipes, and the hosts that they run on."""

    lab: Lab
    folder: Path
    number: count
    user: str = ""
    gpus: int = 2

    def order(self, recipe: str, hosts: tuple[Host, ...], **files: str) -> Path:
        """The driver's order for this recipe, with these files beside it."""
        run_id = f"run-{next(self.number)}"
        work = self.folder / run_id
        work.mkdir()
        (work / "recipe.yaml").write_text(dedent(recipe))
        for name, text in files.items():
            (work / name.replace("_", ".")).write_text(dedent(text))
        inventory = Inventory("lab", tuple(self._node(index, host) for index, host in enumerate(hosts)))
        order = {
            "recipe": str(work / "recipe.yaml"),
            "inventory": inventory.as_json(),
            "run_id": run_id,
            "key": str(self.lab.key),
            "home": str(self.folder / "home"),
        }
        path = work.with_suffix(".json")
        path.write_text(json.dumps(order))
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

    def argv(self, order: Path) -> list[str]:
        return [sys.executable, "-m", "tests.system.launchers.driver", str(order)]

    def run(self, recipe: str, *hosts: Host, env: dict[str, str] | None = None, **files: str) -> "Told":
        order = self.order(recipe, hosts, **files)
        done = self.lab.client(self.argv(order), env=self.environment(env or {}), cwd=REPOSITORY, check=False)
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert told, done.stderr
        return Told(order.stem, told, done.stderr)

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin", "HOME": str(self.folder), **more}


@dataclass(frozen=True)
class Told:
    """Output and result of a run."""

    run_id: str
    told: list[dict]
    stderr: str

    @property
    def lines(self) -> list[str]:
        return sorted(one["line"] for one in self.told if "line" in one)

    @property
    def verdict(self) -> dict:
        assert "state" in self.told[-1], (self.told, self.stderr)
        return self.told[-1]


@pytest.fixture(scope="module")
def launches_on(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Launches]:
    """Runs on the hosts of a lab."""
    return lambda lab, **more: Launches(lab, tmp_path_factory.mktemp("launches"), count(), **more)


@pytest.fixture(scope="module")
def launches(lab_hosts: Lab, launches_on: Callable[..., Launches]) -> Launches:
    return launches_on(lab_hosts)
