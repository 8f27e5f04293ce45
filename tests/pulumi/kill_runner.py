"""Kill one process of a command that uses the Pulumi CLI, clean up, and check that nothing remains."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import boto3

from cloudgpu.ledger.store import open_ledger
from cloudgpu.paths import Home
from cloudgpu.state.record_store import RecordStore
from tests.rehearsal.conftest import Workspace

LIMIT_S = 180
"""Time limit of a command. The CLI of a killed command may take 180 s to exit, and usually takes about 5 s."""
ORPHAN_S = 60
"""Time limit for the exit of a process whose command was killed, sufficient for a busy machine."""
STAGES = ("up", "down", "train")
VICTIMS = ("command", "cli", "plugin", "language")
CLEANUPS = ("down",) * 5 + ("sweep", "down")
"""Commands that the user runs next, weighted. `sweep` always runs after damage to the state home."""


@dataclass(frozen=True)
class Case:
    """One kill.

    Attributes:
        moment: When the victim is killed, as a fraction of its lifetime (for `command`, of the command's duration).
        cleanup: Command that the user runs next.
        damage: Damage to the state home before the cleanup, as a key of `DAMAGES`. Empty means none.
    """

    number: int
    stage: str
    victim: str
    moment: float
    cleanup: str
    damage: str

    def __str__(self) -> str:
        parts = (f"{self.number:03}", self.stage, self.victim, f"{self.moment:.2f}", self.damage, self.cleanup)
        return "-".join(part for part in parts if part)


def random_case(seed: int, number: int) -> Case:
    """Return the case with a number, which depends only on the seed and the number."""
    rng = random.Random(f"{seed}/{number}")
    stage = STAGES[number % len(STAGES)]
    victim = VICTIMS[number // len(STAGES) % len(VICTIMS)]
    if (stage, victim) == ("down", "language"):
        victim = "command"  # `pulumi destroy` runs no program
    moment = rng.random()
    cleanup = rng.choice(CLEANUPS)
    damage = rng.choice(sorted(DAMAGES)) if cleanup == "sweep" or rng.random() < 0.2 else ""
    return Case(number, stage, victim, moment, cleanup, damage)


def _lose_state(home: Home) -> None:
    shutil.rmtree(home.pulumi / "rehearsal" / "state", ignore_errors=True)


def _truncate_state(home: Home) -> None:
    for path in (home.pulumi / "rehearsal" / "state" / ".pulumi" / "stacks").rglob("*.json"):
        os.truncate(path, path.stat().st_size // 2)


def _lose_record(home: Home) -> None:
    for folder in home.clusters.iterdir():
        shutil.rmtree(folder, ignore_errors=True)


def _lose_projects(home: Home) -> None:
    shutil.rmtree(home.pulumi / "rehearsal" / "projects", ignore_errors=True)


def _empty_running_file(home: Home) -> None:
    for path in (home.pulumi / "rehearsal" / "projects").glob("*/running"):
        path.write_text("")


DAMAGES: dict[str, Callable[[Home], None]] = {
    "lost-state": _lose_state,
    "truncated-state": _truncate_state,
    "lost-record": _lose_record,
    "lost-projects": _lose_projects,
    "empty-note": _empty_running_file,
}


@dataclass(frozen=True)
class Process:
    """A process of this machine, as read from /proc."""

    pid: int
    parent: int
    words: tuple[str, ...]
    environ: bytes

    @property
    def role(self) -> str:
        """`cli`, `plugin`, `language` or `command`, or an empty string for any other process."""
        program = " ".join(self.words)
        if "cloudgpu.engine.plugin" in program:
            return "plugin"
        if "pulumi-language-python" in program:
            return "language"
        if Path(self.words[0]).name == "pulumi":
            return "cli"
        if "-m cloudgpu " in program:
            return "command"
        return ""


def processes(home: Home) -> Iterator[Process]:
    """Yield the processes of the commands of a state home, without its rehearsal cloud."""
    root = os.fsencode(home.root)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes()
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state in "ZX" or root not in environ or not words[0]:
            continue
        process = Process(int(folder.name), int(parent), tuple(map(os.fsdecode, words)), environ)
        if process.role:
            yield process


@dataclass
class KillRunner:
    """Runs cases one after the other on the same state home.

    Attributes:
        command_s: Estimated duration of each stage's command, updated by every command that finished before its kill.
    """

    workspace: Workspace
    engine: dict[str, str]
    command_s: dict[str, float] = field(default_factory=lambda: {"up": 12.0, "down": 8.0, "train": 20.0})

    known_projects: set[str] = field(default_factory=set)
    """Project folders that existed before the current case. They remain if a cluster was deleted only by its tags."""

    @property
    def home(self) -> Home:
        return self.workspace.home

    def arguments(self, stage: str) -> tuple[str, ...]:
        return ("down", "plain") if stage == "down" else (stage, "plain", "--yes")

    def kill(self, case: Case) -> tuple[bool, int | None, str]:
        """Run a command and kill the victim. Return whether it was killed, and the command's exit status and output."""
        self.known_projects = self.projects()
        if case.stage == "down":
            self.workspace.run("up", "plain", "--yes", env=self.engine)
        process = self.workspace.popen(*self.arguments(case.stage), env=self.engine, start_new_session=True)
        try:
            effective = self._kill_victim(process, case)
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"{case}: the command did not exit\n{out}\n{err}") from None
        return effective, process.returncode, f"{out}\n{err}"

    def _kill_victim(self, process: subprocess.Popen, case: Case) -> bool:
        if case.victim == "command":
            started = time.monotonic()
            while process.poll() is None:
                elapsed_s = time.monotonic() - started
                if elapsed_s >= case.moment * self.command_s[case.stage]:
                    os.killpg(process.pid, signal.SIGKILL)
                    return True
                time.sleep(0.01)
            self.command_s[case.stage] = time.monotonic() - started
            return False
        # A command runs the CLI several times, usually for less than a second each. The moment also determines which of
        # these processes is killed. If a process exits before its moment, the next one is killed.
        pause_s = self.command_s[case.stage] / 3 * case.moment
        first, seen = 1 + int(case.moment * 10) % 4 if case.victim == "cli" else 1, set[int]()
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < deadline:
            for found in processes(self.home):
                if found.role == case.victim and found.pid not in seen:
                    seen.add(found.pid)
                    time.sleep(pause_s if len(seen) >= first else 0)
                    if len(seen) >= first and _killed(found.pid):
                        return True
            time.sleep(0.01)
        return False

    def clean_up(self, case: Case) -> None:
        """Damage the state home as the case requires, and run the cleanup commands."""
        # `train` creates a cluster that is named after the run.
        names = [cluster.name for cluster in RecordStore(self.home).clusters()] or ["plain"]
        if case.damage:
            DAMAGES[case.damage](self.home)
        if case.cleanup == "sweep":
            self.workspace.run("sweep", "--all-mine", "--yes", "--on", "rehearsal", env=self.engine)
        for name in names:
            self.workspace.run("down", name, "--yes", env=self.engine)

    def launched(self) -> set[str]:
        """Return the ID of every instance that the cloud has launched, including terminated ones."""
        cloud = self.workspace.cloud
        key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
        ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=cloud.url, **key)
        pages = ec2.get_paginator("describe_instances").paginate()
        return {row["InstanceId"] for page in pages for group in page["Reservations"] for row in group["Instances"]}

    def projects(self) -> set[str]:
        return {path.name for path in (self.home.pulumi / "rehearsal").glob("projects/*")}

    def check(self, case: Case) -> None:
        """Check that the cloud, the open ledger rows, the records and the process list are empty."""
        deadline = time.monotonic() + ORPHAN_S
        while remaining := list(processes(self.home)):
            shown = [(process.role, process.pid, process.words[:3]) for process in remaining]
            assert time.monotonic() < deadline, f"{case}: {shown} outlived the command"
            time.sleep(0.1)
        assert self.workspace.left() == {}, case
        assert RecordStore(self.home).clusters() == [], f"{case}: records"
        ledger = open_ledger(f"sqlite:///{self.home.ledger_db}")
        try:
            entries = ledger.entries()
        finally:
            ledger.engine.dispose()
        assert [entry for entry in entries if entry.state == "open"] == [], case
        billed = {instance for entry in entries for instance in entry.instance_ids}
        assert self.launched() <= billed, f"{case}: some launched instances are not in the ledger"
        assert all(entry.launched_at for entry in entries if entry.instance_ids), case
        if not case.damage:
            assert self.projects() <= self.known_projects, f"{case}: a project remains"


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def passed_cases(log: Path | None) -> set[int]:
    """Return the numbers of the cases that passed in an earlier session."""
    if log is None or not log.exists():
        return set()
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {row["number"] for row in rows if not row["error"]}


def log_result(log: Path | None, case: Case, *, effective: bool, status: int | None, error: str = "") -> None:
    """Append the result of a case to the log."""
    if log is not None:
        row = {**case.__dict__, "effective": effective, "status": status, "error": error}
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
