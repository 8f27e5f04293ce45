"""Fuzz targets for a recipe's setup and a run's secrets on a node."""

from pathlib import Path
from typing import Any
from unittest import mock

from cloudgpu.node.agent import masking
from cloudgpu.node.agent.environments import setup
from cloudgpu.node.agent.environments.setup import SetupRequest
from cloudgpu.node.agent.untrusted_data import AgentError
from tests.unit.fuzz.conformity import conforms
from tests.unit.fuzz.hostile import files as documents
from tests.unit.fuzz.hostile import values
from tests.unit.fuzz.target import Target, scratch, written

SETUP = {
    "script": "make",
    "digest": "ab" * 32,
    "interpreter": "/e/bin/python",
    "workdir": "/nonexistent/work",
    "root": "/nonexistent/setup",
    "env": {"A": "b"},
    "secrets": {"TOKEN": "x"},
    "container": {
        "name": "cloudgpu-setup-x-0",
        "image": "x@sha256:0",
        "shown": "x:1",
        "client": ["docker", "--host", "unix:///run/docker.sock"],
        "run": ["run", "x"],
        "gpus": False,
        "devices": ["0"],
        "own": ["/w"],
        "script": "/setup.sh",
        "run_script": ["docker", "exec"],
        "recipe": "x",
    },
}


def _setup(value: Any) -> None:
    if isinstance(value, dict):
        conforms(SetupRequest, setup._read(value))


def _setup_marker(content: bytes) -> None:
    for path in setup._read_created(str(written(setup._MARKER, content).parent)) or ():
        assert (scratch() / path).is_relative_to(scratch())


def _run_secrets(content: bytes) -> None:
    with mock.patch.object(masking, "FOLDER", str(scratch())):
        path = written(Path(masking.path_of("/run")).name, content)
        path.chmod(0o600)
        assert len(masking.read_mask("/run")(content)) == len(content)


TARGETS = (
    Target("setup request", values(SETUP), _setup, (AgentError,)),
    Target("setup marker", documents({"created": ["build", "a/b.so"]}), _setup_marker, (AgentError,)),
    Target("run secrets", documents({"TOKEN": "hf_s3cr3t"}), _run_secrets),
)
