"""A recipe carried through by `train --json`: its own script, the framework that it names, nothing left."""

import json
import os
import re
from pathlib import Path
from typing import Any

from tests.rehearsal.conftest import Workspace

ROOT = Path(__file__).parents[3]
INSTALLING_S = 1000
"""The first run of a checkout installs PyTorch or TensorFlow, or compiles Horovod."""
_TRAINING = re.compile(r"^==> train  .*\n((?:    .*\n)*?)    took ", re.MULTILINE)
_LINE = re.compile(r"^    (?:\[rank (\d+)\] )?(.*)$", re.MULTILINE)
"""A line of a rank. The lines of a run with a single rank have no prefix."""


def cache() -> Path:
    """Where environments are built once a checkout."""
    return Path(os.environ.get("CLOUDGPU_ENV_CACHE", str(ROOT / ".cache" / "envs")))


def cached() -> dict[str, str]:
    """The variable that says so to a command."""
    return {"CLOUDGPU_ENV_CACHE": str(cache())}


class Trained:
    """What one `train --json` told, what its ranks said, and what it brought back."""

    def __init__(self, workspace: Workspace, name: str, *more: str, state: str = "succeeded", **env: str) -> None:
        recipe = str(ROOT / "recipes" / name)
        arguments = ("train", recipe, "--on", "rehearsal", "--yes", "--json", *more)
        process = workspace.popen(*arguments, env={**cached(), **env})
        try:
            out, err = process.communicate(timeout=INSTALLING_S)
        finally:
            process.kill()
        assert process.returncode == 0, f"{out}\n{err}"
        self.told: dict[str, Any] = json.loads(out)
        lines = [line for part in _TRAINING.findall(err) for line in _LINE.findall(part)]
        self.said = [text for _, text in lines]
        self.head_said = [text for rank, text in lines if rank in ("", "0")]
        assert (self.told["state"], self.told["simulated"], self.told["left"]) == (state, True, []), err
        # Data that a recipe puts into the rehearsal's S3 is the user's.
        assert workspace.left().keys() <= {"buckets"}

    def figure(self, metric: str) -> float:
        """A metric that must have a value."""
        value = self.told["metrics"][metric]["value"]
        assert value is not None, self.said
        return value

    @property
    def outputs(self) -> Path:
        """The folder that was brought back."""
        return Path(self.told["outputs"]["directory"]) / "outputs"

    @property
    def written(self) -> dict[str, Any]:
        """What the script itself wrote down."""
        return json.loads((self.outputs / "metrics.json").read_text())

    def said_once(self, text: str) -> bool:
        """Whether exactly one line of all ranks has this text."""
        return sum(text in line for line in self.said) == 1
