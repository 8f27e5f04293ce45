"""Kill one part of a command that runs under the Pulumi CLI, and check that nothing is left afterwards."""

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
"""Longer than any command takes: the CLI of a killed command gets 180 s, and needs about 5."""
ORPHAN_S = 60
"""Upper bound for a process that has lost the command it works for; a busy machine included."""
STAGES = ("up", "down", "train")
VICTIMS = ("command", "cli", "plugin", "language")
ENDINGS = ("down",) * 5 + ("sweep", "down")
"""What the user types next; the last `down` and `sweep` come after the home was damaged."""


@dataclass(frozen=True)
class Case:
    """One kill.

    Attributes:
        moment: When it happens, as a fraction of the life of the victim (of the command, for `command`).
        harm: What happens to the home before the user goes on; empty for nothing.
    """

    number: int
    stage: str
    victim: str
    moment: float
    ending: str
    harm: str

    def __str__(self) -> str:
        parts = (f"{self.number:03}", self.stage, self.victim, f"{self.moment:.2f}", self.harm, self.ending)
        return "-".join(part for part in parts if part)


def draw(seed: int, number: int) -> Case:
    """Return case `number` of a seed: the same whenever and in whatever order it is asked for."""
    chance = random.Random(f"{seed}/{number}")
    stage = STAGES[number % len(STAGES)]
    victim = VICTIMS[number // len(STAGES) % len(VICTIMS)]
    if (stage, victim) == ("down", "language"):
        victim = "command"  # `pulumi destroy` runs no program
    moment = chance.random()
    ending = chance.choice(ENDINGS)
    harm = chance.choice(sorted(HARMS)) if ending == "sweep" or chance.random() < 0.2 else ""
    return Case(number, stage, victim, moment, ending, harm)


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


def _empty_note(home: Home) -> None:
    for path in (home.pulumi / "rehearsal" / "projects").glob("*/running"):
        path.write_text("")


HARMS: dict[str, Callable[[Home], None]] = {
    "lost-state": _lose_state,
    "truncated-state": _truncate_state,
    "lost-record": _lose_record,
    "lost-projects": _lose_projects,
    "empty-note": _empty_note,
}


@dataclass(frozen=True)
class Process:
    """One process of this machine, as /proc shows it."""

    pid: int
    parent: int
    words: tuple[str, ...]
    environ: bytes

    @property
    def role(self) -> str:
        """`cli`, `plugin`, `language`, `command`, or empty for any other process."""
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
    """Every process that works for a command of this home; its rehearsal cloud is none of them."""
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
        found = Process(int(folder.name), int(parent), tuple(map(os.fsdecode, words)), environ)
        if found.role:
            yield found


@dataclass
class Field:
    """A home on which case after case is carried out.

    Attributes:
        command_s: About how long a command of each stage lives here; corrected by every one that ended too soon.
    """

    workspace: Workspace
    engine: dict[str, str]
    command_s: dict[str, float] = field(default_factory=lambda: {"up": 12.0, "down": 8.0, "train": 20.0})

    known_projects: set[str] = field(default_factory=set)
    """Folders of clusters that were ended by their tags alone, after the home was damaged: they stay."""

    @property
    def home(self) -> Home:
        return self.workspace.home

    def arguments(self, stage: str) -> tuple[str, ...]:
        return ("down", "plain") if stage == "down" else (stage, "plain", "--yes")

    def kill(self, case: Case) -> tuple[bool, int | None, str]:
        """Kill what the case says; returns whether it was alive then, the command's status and what it wrote."""
        self.known_projects = self.projects()
        if case.stage == "down":
            self.workspace.run("up", "plain", "--yes", env=self.engine)
        process = self.workspace.popen(*self.arguments(case.stage), env=self.engine, start_new_session=True)
        try:
            effective = self._strike(process, case)
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"{case}: the command did not end\n{out}\n{err}") from None
        return effective, process.returncode, f"{out}\n{err}"

    def _strike(self, process: subprocess.Popen, case: Case) -> bool:
        if case.victim == "command":
            began = time.monotonic()
            while process.poll() is None:
                lived = time.monotonic() - began
                if lived >= case.moment * self.command_s[case.stage]:
                    os.killpg(process.pid, signal.SIGKILL)
                    return True
                time.sleep(0.01)
            self.command_s[case.stage] = time.monotonic() - began
            return False
        # The CLI runs several times in a command, mostly for less than a second: which of its lives is struck is a
        # part of the moment. A life that ends before its moment comes is followed by the next one.
        pauses = self.command_s[case.stage] / 3 * case.moment
        lives, seen = 1 + int(case.moment * 10) % 4 if case.victim == "cli" else 1, set[int]()
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < deadline:
            for one in processes(self.home):
                if one.role == case.victim and one.pid not in seen:
                    seen.add(one.pid)
                    time.sleep(pauses if len(seen) >= lives else 0)
                    if len(seen) >= lives and _killed(one.pid):
                        return True
            time.sleep(0.01)
        return False

    def end(self, case: Case) -> None:
        """Damage the home as the case says, and type what the user types next."""
        # A `train` has a cluster of its own, named after its run.
        names = [one.name for one in RecordStore(self.home).clusters()] or ["plain"]
        if case.harm:
            HARMS[case.harm](self.home)
        if case.ending == "sweep":
            self.workspace.run("sweep", "--all-mine", "--yes", "--on", "rehearsal", env=self.engine)
        for name in names:
            self.workspace.run("down", name, "--yes", env=self.engine)

    def launched(self) -> set[str]:
        """Return the id of every instance that this cloud has launched, terminated ones included."""
        cloud = self.workspace.cloud
        key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
        ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=cloud.url, **key)
        pages = ec2.get_paginator("describe_instances").paginate()
        return {row["InstanceId"] for page in pages for group in page["Reservations"] for row in group["Instances"]}

    def projects(self) -> set[str]:
        return {path.name for path in (self.home.pulumi / "rehearsal").glob("projects/*")}

    def check(self, case: Case) -> None:
        """Fail unless nothing is left: in the cloud, in the ledger, in the records and among the processes."""
        deadline = time.monotonic() + ORPHAN_S
        while left := list(processes(self.home)):
            shown = [(one.role, one.pid, one.words[:3]) for one in left]
            assert time.monotonic() < deadline, f"{case}: {shown} outlived the command"
            time.sleep(0.1)
        assert self.workspace.left() == {}, case
        assert RecordStore(self.home).clusters() == [], f"{case}: records"
        ledger = open_ledger(f"sqlite:///{self.home.ledger_db}")
        try:
            entries = ledger.entries()
        finally:
            ledger.dispose()
        assert [one for one in entries if one.state == "open"] == [], case
        billed = {instance for one in entries for instance in one.instance_ids}
        assert self.launched() <= billed, f"{case}: these were launched and are on no bill"
        assert all(one.launched_at for one in entries if one.instance_ids), case
        if not case.harm:
            assert self.projects() <= self.known_projects, f"{case}: a project is left"


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def noted(log: Path | None) -> set[int]:
    """Numbers of the cases that passed in an earlier session."""
    if log is None or not log.exists():
        return set()
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {row["number"] for row in rows if not row["error"]}


def note(log: Path | None, case: Case, *, effective: bool, status: int | None, error: str = "") -> None:
    """Add one line for a case that was carried out."""
    if log is not None:
        row = {**case.__dict__, "effective": effective, "status": status, "error": error}
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
