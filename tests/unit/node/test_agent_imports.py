"""Verbs that run on every node, often or for the whole run, import only what they use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.node.agent import proc
from cloudgpu.node.payload import agent_name, agent_source

HTTP = ("http.client", "ssl", "urllib.request")
CLIENTS = (
    "checkpoints.s3",
    "containers.docker_api",
    "containers.setup_image",
    "fetch.bounded_http",
    "instance_metadata",
)
UNUSED = {*HTTP, *(f"cloudgpu_agent.{name}" for name in CLIENTS)}
"""The HTTP client and its users, whose import takes longer than that of all other modules of such a verb."""


@pytest.fixture(name="loaded")
def _loaded(tmp_path: Path):
    """Return a function that runs a program with the agent's bundle, and returns the unused modules that it loads."""
    bundle = tmp_path / agent_name()
    bundle.write_bytes(agent_source())

    def loaded(program: str, request: object = None, **env: str) -> set[str]:
        code = f"import sys\nsys.path.insert(0, {str(bundle)!r})\n{program}\nprint(*sys.modules, file=sys.stderr)"
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], input=json.dumps(request).encode(), capture_output=True,
            env={**os.environ, **env}, check=True, timeout=60,
        )  # fmt: skip
        return UNUSED & set(done.stderr.decode().split())

    return loaded


@pytest.mark.parametrize("spot", [False, True])
def test_only_follow_on_a_spot_node_loads_the_http_client(loaded, tmp_path: Path, spot: bool) -> None:
    times = {"created_utc": "2026-01-01T00:00:00Z", "ended_utc": "2026-01-01T00:00:01Z"}
    agent = proc.process_identity(os.getpid())
    ended = {"run_id": "r", "node_index": 0, "state": "succeeded", "ranks": [], "first_failure": None, "lost_s": 20.0}
    (tmp_path / "status.json").write_text(json.dumps({**ended, **times, "agent": agent}))
    program = "from cloudgpu_agent.main import main\nassert main(['follow']) == 0"
    unreachable = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}
    found = loaded(program, {"run_dir": str(tmp_path), "spot": spot}, **unreachable)
    assert found == (
        {*HTTP, "cloudgpu_agent.instance_metadata", "cloudgpu_agent.fetch.bounded_http"} if spot else set()
    )


@pytest.mark.parametrize("module", ["leases.termination", "gang.start_stop", "gang.status"])
def test_modules_that_start_and_end_runs_load_no_http_client(loaded, module: str) -> None:
    assert loaded(f"import cloudgpu_agent.{module}") == set()
