"""The command line of `scripts/live`."""

import argparse
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import typer

from cloudgpu import files
from cloudgpu.cli.terminal.prompts import Prompts
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import BusyError, CloudGpuError, StateError, UsageError
from cloudgpu.paths import Home
from cloudgpu.settings import Settings, load
from cloudgpu.version import __version__
from live_tier import recordings
from live_tier.checks import failed
from live_tier.cluster_checks import checks_of
from live_tier.commands import Commands
from live_tier.evidence import Evidence
from live_tier.levels import LEVELS, PAIR
from live_tier.live_run import LiveRun, Request, spent_usd, versions
from live_tier.report import CheckRow, Report, text
from live_tier.scrubbing import Scrubber

_INTERRUPTED = 130


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="scripts/live", description=__doc__)
    parser.description = (
        "Verify cloudgpu against a live AWS account. check is free; smoke and pair ask before spending."
    )
    parser.add_argument("level", choices=list(LEVELS))
    parser.add_argument("--on", dest="target", choices=["aws", "rehearsal"], default="aws", help="default: aws")
    parser.add_argument("--region", help="region to use; default: the `region` setting")
    parser.add_argument("--yes", "-y", action="store_true", help="skip confirmation prompts")
    parser.add_argument("--image", default="", help="pair: your image of images/nccl-tests, in a registry")
    parser.add_argument("--replay", type=Path, help="answer from this recording of the level instead of AWS")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run one level, and return the exit code."""
    options, screen = parse(argv), Screen()
    try:
        settings = load(flags={}, environ=os.environ, cwd=Path.cwd())
        if options.level == PAIR.name and options.target == "aws" and not (options.image or options.replay):
            hint = "build images/nccl-tests (images/README.md), push it, and add --image REGISTRY/nccl-tests:TAG"
            raise UsageError("pair needs an image with nccl-tests and EFA", hint=hint)
        with _only_run(settings.home / "live") as home:
            return _run(options, settings, home, screen)
    except CloudGpuError as err:
        screen.error(err)
        return err.exit_code
    except typer.Exit as end:
        return int(end.exit_code)
    except KeyboardInterrupt:
        return _INTERRUPTED


@contextmanager
def _only_run(home: Path) -> Iterator[Path]:
    """Lock the folder for reports, so that one run does not delete the cluster of another."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = files.open_for_appending(home / "lock", 0o600)
    except OSError as err:
        message = f"{home} cannot be used: {err.strerror}"
        raise StateError(message, hint="set CLOUDGPU_HOME to a folder that you can write to") from err
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            message = "another scripts/live is running with this state home"
            raise BusyError(message, hint="wait until it has finished") from err
        recordings.delete_unscrubbed(home)
        yield home


def _run(options: argparse.Namespace, settings: Settings, home: Path, screen: Screen) -> int:
    started_at, started = datetime.now(UTC), time.monotonic()
    region = options.region or settings.region
    folder = home / f"{started_at:%Y%m%dT%H%M%SZ}-{options.level}-{os.getpid()}"
    folder.mkdir(mode=0o700)
    (folder / "raw").mkdir(mode=0o700)
    # Quotas that an earlier command has read would be missing in the recording.
    Home(settings.home).catalog(options.target).quotas.unlink(missing_ok=True)
    replayed = recordings.read(options.replay) if options.replay else None
    commands = Commands(folder / "raw", os.environ, screen.remark, replayed)
    cluster = replayed.cluster if replayed else ""
    request = Request(LEVELS[options.level], options.target, region, settings.owner, options.image, cluster)
    yes = options.yes or replayed is not None  # a replay launches nothing
    run = LiveRun(request, commands, screen.line, lambda question: Prompts(screen).confirm(question, yes=yes))
    with commands.handle_signals():
        try:
            run.run()
        except KeyboardInterrupt:
            commands.interrupted = True
        finally:
            commands.cleaning = True
            scrubber = recordings.scrubber_for(commands.results, recordings.personal_names(settings))
            evidence = Evidence(options.target != "aws", tuple(commands.results))
            report = Report(
                level=options.level,
                target=options.target,
                simulated=evidence.simulated,
                version=__version__,
                region=region,
                started_at=f"{started_at:%Y-%m-%d %H:%M} UTC",
                seconds=round(time.monotonic() - started),
                usd=spent_usd(evidence, run.cluster),
                interrupted=commands.interrupted,
                checks=tuple(_rows(options.level, evidence)),
                left=tuple(run.left),
                versions=versions(evidence),
            )
            _write(folder, report, commands, scrubber)
    screen.lines(["", *text(report), f"report  {folder}"])
    return report.exit_code


def _rows(level: str, evidence: Evidence) -> Iterator[CheckRow]:
    for check in checks_of(level):
        try:
            found = check.evaluate(evidence)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as err:
            # A node or AWS answered in a form that the check does not know. The other results must not be lost.
            found = failed(f"unexpected output: {type(err).__name__}: {err}")
        yield CheckRow(check.name, check.verifies, found.state, found.detail)


def _write(folder: Path, report: Report, commands: Commands, scrubber: Scrubber) -> None:
    """Write the report and the recordings without identifiers, and delete the unscrubbed recordings."""
    recordings.write(folder / "recording", commands.results, scrubber)
    files.create(folder / "report.json", json.dumps(scrubber.scrub(report.as_json()), indent=2).encode() + b"\n")
    files.create(folder / "report.txt", "".join(f"{scrubber.text(line)}\n" for line in text(report)).encode())
    shutil.rmtree(folder / "raw", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
