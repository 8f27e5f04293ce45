"""Run the recipe's setup on every node, unless it has already run there with the same inputs."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from cloudgpu.errors import StateError
from cloudgpu.files import open_for_reading
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent, run_on_agents
from cloudgpu.run.job import Job
from cloudgpu.run.progress import Note, Report, relay
from cloudgpu.ssh.transfer.local_tree import files_to_send

_FORMAT: Final = 1
"""Version of the digest. A new version runs every setup again."""
_WORD: Final = re.compile(r"[^\s\"'`=;|&()<>$]+")


def setup_digest(recipe: Recipe, base: Path) -> str:
    """Return a digest of the setup and its inputs; empty if the recipe has no setup.

    The inputs are the variables, the names of the secrets, and the files and directories of the work directory that the
    script names: a changed `requirements.txt` runs `pip install -r requirements.txt` again, a changed `train.py` does
    not.
    """
    if not recipe.setup:
        return ""
    root = None if recipe.workdir is None else (base / recipe.workdir).resolve()
    environment = recipe.environment
    inputs = [
        _FORMAT,
        recipe.setup,
        sorted(environment.env.items()),
        sorted(environment.secrets),
        [] if root is None else [(path, _sha256(root / path)) for path in _named_files(recipe.setup, root)],
    ]
    return hashlib.sha256(json.dumps(inputs).encode(errors="surrogateescape")).hexdigest()


def run_setup(
    job: Job, agents: Sequence[Agent], digest: str, interpreters: Mapping[int, str], secrets: Mapping[str, str],
    report: Report,
) -> None:  # fmt: skip
    """Run the setup directly on every node on which it has not run with this digest."""
    request_setup(
        agents,
        lambda agent: setup_request(job, agent, digest, secrets) | {"interpreter": interpreters[agent.host.node.index]},
        report,
    )


def request_setup(agents: Sequence[Agent], request_for: Callable[[Agent], Mapping[str, Any]], report: Report) -> None:
    """Send every node its request, and report if no node had to run the setup."""

    def prepare(agent: Agent) -> bool:
        answer = agent.ask("setup", request_for(agent), lambda line: relay(line, agent.host.node.index, report))
        return bool(answer["ran"])

    if not any(run_on_agents(agents, prepare).values()):
        report(Note("setup already ran on every node with the same inputs"))


def setup_request(job: Job, agent: Agent, digest: str, secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of a node's request that is the same with and without a container."""
    environment = job.recipe.environment
    return {
        "script": job.recipe.setup,
        "digest": digest,
        "workdir": job.workdir(agent.home),
        "root": setup_root(agent.home),
        "env": dict(environment.env),
        "secrets": {name: secrets[name] for name in environment.secrets},
    }


def setup_root(home: str) -> str:
    """Return the directory on a node that keeps the finished setups."""
    return f"{home}/.cloudgpu/setup"


def _named_files(script: str, root: Path) -> Iterator[str]:
    """Yield the files of the work directory that the script names, and all files of a directory that it names."""
    named = {PurePosixPath(word) for word in _WORD.findall(script)}
    for file in files_to_send(root).files:
        path = PurePosixPath(file)
        if named & {path, *path.parents}:
            yield file


def _sha256(path: Path) -> str:
    try:
        if path.is_symlink():
            return str(path.readlink())
        with open_for_reading(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as err:
        raise StateError(f"cannot read {path}: {err.strerror}", hint="check the permissions of the file") from err
