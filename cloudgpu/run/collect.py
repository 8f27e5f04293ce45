"""Finish a run on its nodes: download outputs, complete uploads to S3, and release datasets."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from cloudgpu.errors import CloudGpuError
from cloudgpu.run.agent import Agent
from cloudgpu.run.dataset_staging import release_datasets
from cloudgpu.run.job import Job
from cloudgpu.run.progress import Report, ignore_progress, report_transfer
from cloudgpu.run.s3_transfers import finish_checkpoint_upload, finish_uploads, place_on_head
from cloudgpu.ssh.fanout import run_on_all
from cloudgpu.ssh.transfer.glob import path_matcher
from cloudgpu.ssh.transfer.listing import SkippedDownload, same_place
from cloudgpu.text import plural, printable

_NAMED: Final = 20
"""Maximum number of skipped files that text output lists. JSON output lists all of them."""


@dataclass(frozen=True)
class SkippedOutput:
    """A path on one node that matched the recipe's outputs but was not downloaded.

    Attributes:
        path: Path relative to the work directory; empty if the entry represents several files.
        lost: True if contents are missing, as with an unreadable file. False for a dangling symlink, for example.
    """

    node: int
    path: str
    reason: str
    lost: bool = False

    @property
    def text(self) -> str:
        """Line for text output."""
        return printable(f"node {self.node}: {self.path + ': ' if self.path else ''}{self.reason}")

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON object."""
        return {"node": self.node, "path": self.path, "reason": self.reason}


@dataclass(frozen=True)
class Collected:
    """The outputs that were downloaded, and those that could not be downloaded.

    Attributes:
        files: Paths below the run's outputs directory.
        missing: Output patterns that matched nothing on any node; empty if a node's download failed.
        failures: One line per node whose outputs could not be downloaded or uploaded to S3, per unreadable output, per
            pattern that matched only skipped files, and for a failed checkpoint upload.
        gone: One line per terminated node whose outputs are lost.
        remarks: Locations of uploaded checkpoints and outputs, and errors of nodes that could not release datasets.
        skipped: Paths that matched but were not downloaded.
    """

    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    skipped: tuple[SkippedOutput, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for text output, one sentence each."""
        named = [f"not fetched: {output.text}" for output in self.skipped if not output.lost]
        more = [f"not fetched: {len(named) - _NAMED} more"] if len(named) > _NAMED else []
        missing = (f"no file matched {pattern} on any node" for pattern in self.missing)
        return (*missing, *self.remarks, *named[:_NAMED], *more, *self.gone, *self.failures)


def collect(job: Job, agents: Sequence[Agent], to: Path, report: Report = ignore_progress) -> Collected:
    """Download the outputs, complete the uploads to S3, and release the datasets.

    The outputs of the head node are stored in `to`, except for those that `place_on_head` moves, and the outputs of
    every other node in `to/node-N`. A node that fails adds a line to `failures` instead of raising an error, so that
    the outputs of the other nodes are still downloaded.
    """
    checkpoint_remark, checkpoint_failures = _finish_checkpoints(job, agents)
    upload_remark, upload_failures = finish_uploads(job, agents)
    fetched = _fetch_outputs(job, agents, to, report)
    remarks = (*filter(None, (checkpoint_remark, upload_remark)), *release_datasets(job, agents))
    unmatched = [pattern for pattern in job.recipe.outputs if not _matched(pattern, fetched.files, to)]
    matched_but_skipped = {pattern: found for pattern in unmatched if (found := _skipped_by(pattern, fetched.skipped))}
    unreadable = _named([output.text for output in fetched.skipped if output.lost])
    empty = [
        f"no file that matches {pattern} could be fetched: {skipped.text}"
        for pattern, skipped in matched_but_skipped.items()
        if not skipped.lost
    ]
    missing = () if fetched.failures else tuple(pattern for pattern in unmatched if pattern not in matched_but_skipped)
    lost = (*fetched.failures, *unreadable, *empty, *checkpoint_failures, *upload_failures)
    return Collected(
        tuple(file.local for file in fetched.files), missing, lost, remarks=remarks, skipped=tuple(fetched.skipped)
    )


def _skipped_by(pattern: str, skipped: Sequence[SkippedOutput]) -> SkippedOutput | None:
    """Return the first skipped path that matches a pattern."""
    matches = path_matcher([pattern])
    return next((output for output in skipped if output.path and matches(output.path.rstrip("/"))), None)


def _finish_checkpoints(job: Job, agents: Sequence[Agent]) -> tuple[str, tuple[str, ...]]:
    """Wait for the head node's checkpoint upload. Return a summary, and an error message if the upload failed."""
    head = next((agent for agent in agents if agent.host.node.index == 0), None)
    try:
        return ("" if head is None else finish_checkpoint_upload(job, head)), ()
    except CloudGpuError as err:
        return "", (err.message,)


def _named(lines: list[str]) -> list[str]:
    """Return the first lines, and the number of the others."""
    return (
        lines
        if len(lines) <= _NAMED
        else [*lines[:_NAMED], f"{plural(len(lines) - _NAMED, 'more output')} cannot be fetched"]
    )


class _FetchedFile(NamedTuple):
    """A downloaded file: its path on its node, relative to the work directory, and its path below the outputs."""

    path: str
    local: str


@dataclass(frozen=True)
class _Fetched:
    files: list[_FetchedFile] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    skipped: list[SkippedOutput] = field(default_factory=list)


def _fetch_outputs(job: Job, agents: Sequence[Agent], to: Path, report: Report) -> _Fetched:
    patterns = list(job.recipe.outputs)
    by_index = {agent.host.node.index: agent for agent in agents}

    def fetch(index: int) -> tuple[list[_FetchedFile], list[SkippedOutput]]:
        agent = by_index[index]
        target = to if index == 0 else to / f"node-{index}"
        place = place_on_head if index == 0 and len(job.inventory.nodes) > 1 else same_place
        skipped: list[SkippedDownload] = []
        with report_transfer(report, "downloading outputs", index) as on_bytes:
            workdir = job.workdir(agent.home)
            names = agent.host.fetch_tree(workdir, patterns, target, skipped.append, on_bytes, place=place)
        named = [SkippedOutput(index, entry.path, entry.reason, entry.lost) for entry in skipped]
        prefix = "" if index == 0 else f"node-{index}/"
        files = [_FetchedFile(name, prefix + place(name)) for name in names]
        return files, [*named, *_dangling(index, to, files)]

    fetched = _Fetched()
    answers = run_on_all([agent.host for agent in agents], lambda host: fetch(host.node.index)) if patterns else {}
    for index, answer in answers.items():
        if isinstance(answer, CloudGpuError):
            fetched.failures.append(f"node {index}: {answer.message}")
        else:
            fetched.files.extend(answer[0])
            fetched.skipped.extend(answer[1])
    return fetched


def _dangling(index: int, to: Path, files: Sequence[_FetchedFile]) -> Iterator[SkippedOutput]:
    """Yield the downloaded symlinks whose targets were not downloaded."""
    for file in files:
        place = to / file.local
        if place.is_symlink() and not place.exists():
            missing = os.path.normpath(Path(file.path).parent / place.readlink())
            yield SkippedOutput(index, file.path, f"symlink to {missing}, which was not fetched")


def _matched(pattern: str, files: Sequence[_FetchedFile], to: Path) -> bool:
    """Return True if a file matches. A dangling symlink is not an output."""
    matches = path_matcher([pattern])
    return any(matches(file.path) and (to / file.local).exists() for file in files)
