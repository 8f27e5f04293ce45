"""Measure the CPU time of `cloudgpu --help` and `--version`.

Aims: <= 0.25 s of CPU time, and <= 2x the CPU time of an empty typer application with as many commands. If SkyPilot is
installed, `cloudgpu --version` must be >= 8x faster than `sky --version`.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from measure import CLOUDGPU, run, show

BARE = """
from typing import Annotated
import typer
app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
def command(name):
    def do(thing: str, on: Annotated[str, typer.Option(help="where")] = "", yes: bool = False, json: bool = False):
        '''Do something.'''
    app.command(name)(do)
for number in range(13):
    command(f"command-{number}")
app()
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE)
        nothing = run([sys.executable, "-c", "pass"])
        typer = run([sys.executable, bare, "--help"])
        print(f"     python -c pass {nothing.cpu_s:.3f} s, an empty typer application {typer.cpu_s:.3f} s CPU")
        for option in ("--help", "--version"):
            ours = run([CLOUDGPU, option])
            show(f"cloudgpu {option}, CPU", ours.cpu_s, 0.25, "s")
            show(f"cloudgpu {option} relative to an empty typer application", ours.cpu_s / typer.cpu_s, 2.0, "x")
        if shutil.which("sky"):
            theirs, ours = run(["sky", "--version"]), run([CLOUDGPU, "--version"])
            show("cloudgpu --version relative to sky --version", ours.cpu_s / theirs.cpu_s, 1 / 8, "x")


if __name__ == "__main__":
    main()
