"""Version 0.1.0 of cloudgpu, from its released wheel, on the state home of a workspace."""

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.version import __version__
from tests.rehearsal.conftest import Workspace

WHEEL = Path(__file__).with_name("cloudgpu-0.1.0-py3-none-any.whl")
PREVIEW = """
import json, sys
from cloudgpu.backends.aws.engines import stack_of
from cloudgpu.cli.context import command_context

context = command_context()
record = context.records.cluster(sys.argv[1])
steps = context.backend(record.identity.target).cloud.engine(record).preview(stack_of(context.home, record))
print(json.dumps(sorted({step.operation for step in steps})))
"""


@dataclass(frozen=True)
class Previous(Workspace):
    """The same state home with the commands of version 0.1.0."""

    package: Path = Path()

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PYTHONPATH": str(self.package)}


def previous_version(workspace: Workspace, package: Path) -> Previous:
    """Extract the wheel to `package`, and return its commands on the state home of `workspace`."""
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(package)
    made = Previous(workspace.home, workspace.work, package=package)
    assert made.run("--version").stdout.split() == ["cloudgpu", "0.1.0"]
    assert workspace.run("--version").stdout.split() == ["cloudgpu", __version__]
    return made


def instance_ids(workspace: Workspace) -> list[str]:
    """Return the recorded instance IDs of the cluster `plain`."""
    inventory = json.loads(workspace.home.cluster("plain").inventory.read_text())
    return [node["instance_id"] for node in inventory["nodes"]]


def previewed(workspace: Workspace, cluster: str, env: dict[str, str] | None = None) -> list[str]:
    """Return the operations that the present engine would carry out for the recorded stack."""
    command = [sys.executable, "-c", PREVIEW, cluster]
    environment = {**workspace.environment, **(env or {})}
    done = subprocess.run(command, env=environment, cwd=workspace.work, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)
