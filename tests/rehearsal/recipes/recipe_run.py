"""Run a recipe with `train --json`, with its shipped script and framework, and collect what it printed and wrote."""

import json
import os
import re
from pathlib import Path
from typing import Any

from tests.rehearsal.conftest import Workspace

ROOT = Path(__file__).parents[3]
INSTALL_TIMEOUT_S = 1000
"""Time limit of a run. The first run in a checkout installs PyTorch or TensorFlow, or compiles Horovod."""
_TRAINING = re.compile(r"^==> train  .*\n((?:    .*\n)*?)    took ", re.MULTILINE)
_LINE = re.compile(r"^    (?:\[rank (\d+)\] )?(.*)$", re.MULTILINE)
"""Output line of a rank. The lines of a run with a single rank have no prefix."""


def cache_folder() -> Path:
    """Return the folder of the environments that are built once per checkout."""
    return Path(os.environ.get("CLOUDGPU_ENV_CACHE", str(ROOT / ".cache" / "envs")))


def cache_environment() -> dict[str, str]:
    """Return the environment variable that makes a command use the cache folder."""
    return {"CLOUDGPU_ENV_CACHE": str(cache_folder())}


class RecipeRun:
    """A completed run of a recipe.

    Attributes:
        result: The JSON result of the command.
        lines: Output lines of all ranks.
        head_lines: Output lines of rank 0.
    """

    def __init__(self, workspace: Workspace, name: str, *more: str, state: str = "succeeded", **env: str) -> None:
        recipe = str(ROOT / "recipes" / name)
        arguments = ("train", recipe, "--on", "rehearsal", "--yes", "--json", *more)
        process = workspace.popen(*arguments, env={**cache_environment(), **env})
        try:
            out, err = process.communicate(timeout=INSTALL_TIMEOUT_S)
        finally:
            process.kill()
        assert process.returncode == 0, f"{out}\n{err}"
        self.result: dict[str, Any] = json.loads(out)
        lines = [line for part in _TRAINING.findall(err) for line in _LINE.findall(part)]
        self.lines = [text for _, text in lines]
        self.head_lines = [text for rank, text in lines if rank in ("", "0")]
        assert (self.result["state"], self.result["simulated"], self.result["left"]) == (state, True, []), err
        # A dataset that a recipe uploads to S3 belongs to the user, so its bucket remains.
        assert workspace.left().keys() <= {"buckets"}

    def metric(self, name: str) -> float:
        """Return the value of a metric, which must have one."""
        value = self.result["metrics"][name]["value"]
        assert value is not None, self.lines
        return value

    @property
    def outputs(self) -> Path:
        """Folder of the downloaded outputs."""
        return Path(self.result["outputs"]["directory"]) / "outputs"

    @property
    def metrics_file(self) -> dict[str, Any]:
        """Contents of the `metrics.json` that the script wrote."""
        return json.loads((self.outputs / "metrics.json").read_text())

    def printed_once(self, text: str) -> bool:
        """Return whether exactly one output line of all ranks contains a text."""
        return sum(text in line for line in self.lines) == 1
