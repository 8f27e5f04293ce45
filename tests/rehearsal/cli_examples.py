"""The examples with output in docs/reference/cli.md: one session of a user at 80 columns on the rehearsal cloud.

`python -m tests.rehearsal.cli_examples` runs the session and writes the outputs that have changed to
docs/reference/cli-output, where scripts/docs_cli.py reads them. What differs between two runs does not count.
"""

import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.documentation import ROOT, commands, same_output
from tests.rehearsal.conftest import Workspace, user_workspace

FOLDER = ROOT / "docs/reference/cli-output"
_USER_HOME = "/home/ann"
_USD = r"\$[\d,.]+"
_BARS = r"#+"
_HOURS = r"\b0\.\d{3}\b"
_SPEED = r"\bsteps_per_s \d[\d.]*|\bsteps_per_s=\d[\d.]*"
_TOOK = r"\btook .*?(?= reached )"
"""Stages of less than a second are not listed."""
_HOSTS = """\
defaults: {user: ubuntu, pool: lab, rate_usd_per_hour: 1.20}
hosts:
  - {name: dgx1, address: 192.0.2.11, gpus: "V100-32GB:8"}
  - {name: dgx2, address: 192.0.2.12, gpus: "V100-32GB:8"}
"""
_RULES = '[{"action": "CreateFleet", "times": 2, "code": "RequestLimitExceeded"}]'


@dataclass(frozen=True)
class Step:
    """A command of the session.

    Attributes:
        name: The command whose example this is; empty if it only prepares others.
        lines: How many lines of the output are shown; None for all.
        start: How the first of these lines begins, if it is not the first line of the output.
        varies: Regular expressions of more text that differs between two runs.
    """

    line: str
    name: str = ""
    lines: int | None = None
    start: str = ""
    varies: tuple[str, ...] = ()
    code: int = 0

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name.replace(' ', '-')}.txt"


SESSION = (
    Step("cloudgpu rehearsal start", "rehearsal start"),
    Step("cloudgpu gpus --count 8 --min-memory 32GB", "gpus", lines=14),
    Step("cloudgpu gpus show V100", "gpus show", lines=26),
    Step("cloudgpu containers --latest-for V100", "containers", lines=10),
    Step("cloudgpu recipe new my-run --gpu V100-32GB:8 --nodes 2", "recipe new", lines=4),
    Step("cloudgpu recipe check my-run", "recipe check"),
    Step("cloudgpu recipe show my-run --set steps=50", "recipe show"),
    Step("cloudgpu recipe list", "recipe list", lines=11),
    Step("cloudgpu plan my-run", "plan"),
    Step("cloudgpu offers my-run", "offers"),
    Step("cloudgpu up my-run --name lab --yes", "up"),
    Step("cloudgpu rehearsal status", "rehearsal status"),
    Step("cloudgpu train my-run --cluster lab --yes", "train", varies=(_USD, _SPEED, _TOOK, r"most [\d.]+ USD")),
    Step("cloudgpu logs", "logs", varies=(_SPEED,)),
    Step("cloudgpu train my-run --cluster lab --yes --detach"),
    Step("cloudgpu attach", "attach", varies=(_USD, _SPEED, _TOOK)),
    Step("cloudgpu train my-run --cluster lab --yes --detach --set steps=100000"),
    Step("cloudgpu status", "status", varies=(_USD,)),
    Step("cloudgpu cancel", "cancel"),
    Step(
        "cloudgpu train my-run --cluster lab --yes --matrix steps=20,40",
        varies=(_USD, r"succeeded \d[\d.]*( \*)?", r"most [\d.]+ USD"),
    ),
    Step("cloudgpu matrix list", "matrix list"),
    Step("cloudgpu matrix show", "matrix show", varies=(_USD, r"succeeded \d[\d.]*( \*)?")),
    Step("cloudgpu matrix csv --out results.csv", "matrix csv"),
    Step("cloudgpu recipe schema", "recipe schema", lines=6),
    Step("cloudgpu rehearsal env", "rehearsal env", lines=1),
    Step("cloudgpu exec lab -- uname -s", "exec"),
    Step("cloudgpu ssh lab 1 -- hostname", "ssh"),
    Step("cloudgpu ssh-config lab", "ssh-config"),
    Step("cloudgpu extend lab --by 5m", "extend", varies=(_USD,)),
    Step("cloudgpu sweep", "sweep", varies=(_USD,)),
    Step("cloudgpu down lab", "down", varies=(_USD,)),
    Step("cloudgpu cost", "cost", varies=(_USD, _BARS, _HOURS)),
    Step("cloudgpu config", "config", lines=8),
    Step("cloudgpu rehearsal quota 'us-east-1/p/on-demand=96'", "rehearsal quota"),
    Step("cloudgpu quota --gpu V100 --nodes 2 --market on-demand", "quota"),
    Step("cloudgpu rehearsal quota"),
    Step("cloudgpu doctor --on rehearsal", "doctor", start="ok       rehearsal cloud", lines=9),
    Step("cloudgpu rehearsal capacity 'us-east-1c/p3dn.24xlarge/*=0'", "rehearsal capacity"),
    Step("cloudgpu rehearsal capacity"),
    Step("cloudgpu rehearsal prices 'us-east-1/p3dn.24xlarge/on-demand=29.5'", "rehearsal prices"),
    Step("cloudgpu catalog refresh", "catalog refresh"),
    Step("cloudgpu catalog show", "catalog show", lines=12),
    Step("cloudgpu catalog history", "catalog history"),
    Step("cloudgpu catalog revert", "catalog revert"),
    Step("cloudgpu rehearsal fault list", "rehearsal fault list", lines=8),
    Step("cloudgpu rehearsal fault show spot-withdrawn", "rehearsal fault show"),
    Step(
        "cloudgpu rehearsal fault apply zone-dry slow-terminate --set zone=us-east-1d",
        "rehearsal fault apply",
    ),
    Step("cloudgpu rehearsal fault rules faults.json", "rehearsal fault rules"),
    Step("cloudgpu rehearsal fault clear", "rehearsal fault clear"),
    Step("cloudgpu rehearsal prices"),
    Step(
        "cloudgpu storage create sets --kind lustre --size 1200 --zone us-east-1c --yes",
        "storage create",
        varies=(r"mount name: \w+",),
    ),
    # Which columns fit depends on the digits of the age.
    Step(
        "cloudgpu storage list",
        "storage list",
        varies=(r"^.*(?=\$168\.00 a month)",),
    ),
    Step("cloudgpu storage delete sets --delete-data --yes", "storage delete"),
    Step(
        "cloudgpu image bake my-run --name lab-base --yes",
        "image bake",
        start="image lab-base",
        varies=(r"cost \$[\d.]+",),
    ),
    Step("cloudgpu image list", "image list"),
    Step("cloudgpu image delete lab-base --yes", "image delete"),
    Step("cloudgpu rehearsal advance 2h", "rehearsal advance"),
    Step("cloudgpu hosts list", "hosts list"),
    Step("cloudgpu rehearsal stop", "rehearsal stop"),
    Step("cloudgpu rehearsal reset --yes", "rehearsal reset"),
)


def run(workspace: Workspace, steps: Sequence[Step] = SESSION) -> Iterator[tuple[Step, str]]:
    """Run the session, and yield each step with the text of its example: the command and its output."""
    (workspace.work / "hosts.yaml").write_text(_HOSTS)
    (workspace.work / "faults.json").write_text(
        '[{"action": "CreateFleet", "times": 2, "code": "RequestLimitExceeded"}]'
    )
    for step in steps:
        program, *arguments = shlex.split(step.line)
        assert program == "cloudgpu"
        code, text = workspace.on_terminal(*arguments)
        assert code == step.code, f"{step.line}: {code}\n{text}"
        text = text.strip("\n").replace(str(workspace.work.parent), _USER_HOME)
        yield step, f"$ {step.line}\n{shortened(text, step)}\n"


def shortened(text: str, step: Step) -> str:
    """Return the lines of an output that the example shows, with a line `...` for those before and after."""
    lines = text.split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith(step.start))
    last = len(lines) if step.lines is None else first + step.lines
    before, after = ["..."] * (first > 0), ["..."] * (last < len(lines))
    return "\n".join([*before, *lines[first:last], *after])


def is_current(step: Step, example: str) -> bool:
    """Return whether the file of a step shows the same as its example."""
    if not step.file.is_file():
        return False
    ((line, shown),) = commands(step.file.read_text(encoding="utf-8"))
    ((_, real),) = commands(example)
    return line == step.line and same_output(shown, real, step.varies)


@contextmanager
def ann(monkeypatch: pytest.MonkeyPatch, start: type[subprocess.Popen] = subprocess.Popen) -> Iterator[Workspace]:
    """A workspace whose path is as long as the home directory in the examples, so that lines are wrapped as there."""
    parent = Path(tempfile.gettempdir())
    folder = parent / secrets.token_hex(8)[: max(4, len(_USER_HOME) - len(str(parent)) - 1)]
    folder.mkdir()
    try:
        with user_workspace(folder, monkeypatch, start) as workspace:
            yield workspace
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Write the outputs that have changed."""
    FOLDER.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_COLOR", "1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with ann(patch) as workspace:
            for step, example in run(workspace):
                if step.name and not is_current(step, example):
                    step.file.write_text(example, encoding="utf-8")
                    sys.stdout.write(f"written: {step.file.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
