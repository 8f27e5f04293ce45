"""The commands of runs: `logs` shows the output of ranks, `attach` reattaches, `cancel` keeps the cluster."""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated

import typer

from cloudgpu import bounds
from cloudgpu.app.runs.attach import (
    RunWatcher,
    copied_at,
    explain_missing_lines,
    find_run,
    read_stored_output,
    require_rank,
)
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.options import Json, RunName, Verbose, integer_parser
from cloudgpu.cli.render.run import exit_code, report_final_state, show_outcome
from cloudgpu.cli.terminal.interruption import print_on_interrupt, reattach_lines
from cloudgpu.cli.terminal.number_format import age
from cloudgpu.cli.terminal.progress_lines import rank_prefix
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.clock import utc_text
from cloudgpu.errors import CloudGpuError, UsageError
from cloudgpu.run.progress import Note, ProgressEvent, RankOutput
from cloudgpu.state.run_records import RunRecord
from cloudgpu.targets import as_target
from cloudgpu.text import command

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_NO_TIME = "-".ljust(len("2026-11-27T09:12:03Z"))


class LogPrinter:
    """Prints the output of ranks. Lines of text begin with their rank if there are several ranks."""

    def __init__(self, screen: Screen, *, as_json: bool, timestamps: bool = False) -> None:
        self._screen = screen
        self._as_json = as_json
        self._timestamps = timestamps

    @property
    def shows_times(self) -> bool:
        """Whether the output shows when its lines were written."""
        return self._as_json or self._timestamps

    def print(self, output: RankOutput) -> None:
        """Print several lines of one rank."""
        at = output.written_at
        if self._as_json:
            written = None if at is None else utc_text(at, "milliseconds")
            self._screen.records(
                json.dumps({"rank": output.rank, "line": line, "time": written}) for line in output.lines
            )
            return
        prefix = "" if output.single_rank else rank_prefix(output.rank, single_rank=False).lstrip()
        if self._timestamps:
            prefix = f"{_NO_TIME if at is None else at.strftime(_TIME)} {prefix}"
        self._screen.block(output.lines, prefix)


def logs(
    run: RunName = "",
    *,
    follow: Annotated[
        bool | None,
        typer.Option(
            "--follow/--no-follow",
            "-f",
            help="Follow the output until the run finishes, or only show the output so far. Default: follow a running "
            "run if its nodes are reachable.",
        ),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option("--tail", metavar="N", parser=integer_parser(0), help="Show only the last N lines of each rank."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", parser=integer_parser(0, 64_000), help="Show only the output of this rank.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Show only lines written since this time: a duration before now (10m, 2h) or a UTC time "
            "(2026-11-27T09:12Z).",
        ),
    ] = None,
    timestamps: Annotated[
        bool,
        typer.Option(
            "--timestamps",
            help="Begin each line with the UTC time at which it was written. Times may be up to a second late.",
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line of output, with `rank`, `line` and `time`.")
    ] = False,
) -> None:
    """Show the output of a run's ranks.

    Copies new output from the nodes, prints it one rank after another, and follows a run that is still running. If the
    nodes cannot be reached, prints the copy on this machine and its age. Does not download outputs or delete the
    cluster; for that, use `cloudgpu attach`.
    """
    context = command_context(json=json, quits=True)
    record = find_run(context.records, run)
    require_rank(record, rank)
    printer = LogPrinter(context.screen, as_json=json, timestamps=timestamps)
    shown = _Shown(context, record, printer, _Selection(rank, tail, _read_since(since, context.clock.now())))
    if record.state != "running":
        shown.stored()
        if not shown.any:
            context.screen.remark(explain_missing_lines(record))
        return
    context.report_clusters_on_signal(record.cluster)
    runs = RunWatcher(replace(context.backend_context(as_target(record.target)), emit=shown.emit))
    try:
        with print_on_interrupt(context.screen.lines, *reattach_lines(record.run_id)):
            followed = runs.logs(record.run_id, shown.stored, follow=follow is not False)
    except CloudGpuError as err:
        if shown.copied:
            raise
        shown.stored()
        context.screen.remark(_copy_line(context, record, err))
        if follow:
            raise
        return
    if followed is not None:
        raise typer.Exit(report_final_state(record.run_id, followed, context.screen))


@dataclass(frozen=True)
class _Selection:
    """The lines that a `logs` command shows: of one rank, the last of each rank, or since a time."""

    rank: int | None
    tail: int | None
    since: datetime | None


class _Shown:
    """The output that a `logs` command shows."""

    def __init__(self, context: CliContext, record: RunRecord, printer: LogPrinter, selection: _Selection) -> None:
        self._context = context
        self._record = record
        self._printer = printer
        self._selection = selection
        self.copied = False
        self.any = False

    def stored(self) -> None:
        """Print the output on this machine."""
        self.copied = True
        chosen, timed = self._selection, self._printer.shows_times
        for output in read_stored_output(
            self._context.home, self._record, chosen.rank, tail=chosen.tail, since=chosen.since, timed=timed
        ):
            self.any = True
            self._printer.print(output)

    def emit(self, event: ProgressEvent) -> None:
        """Print live output. Notes go to stderr, because stdout is only for the output of ranks."""
        if isinstance(event, RankOutput):
            if self._selection.rank in (None, event.rank) and not self._is_before(event.written_at):
                self._printer.print(event)
        elif isinstance(event, Note) and not event.detail:
            self._context.screen.remark(event.text if event.node is None else f"node {event.node}: {event.text}")

    def _is_before(self, written_at: datetime | None) -> bool:
        since = self._selection.since
        return since is not None and written_at is not None and written_at < since


def _copy_line(context: CliContext, record: RunRecord, err: CloudGpuError) -> str:
    written = copied_at(context.home, record)
    what = "there is no copy of the output on this machine"
    if written is not None:
        ago = age((context.clock.now() - written).total_seconds())
        what = f"this copy is {ago} old ({written:%Y-%m-%d %H:%M:%S} UTC); newer output may be on the nodes"
    return f"{what}: {err.message}"


def _read_since(text: str | None, now: datetime) -> datetime | None:
    """Parse the value of `logs --since`: a duration before `now`, or a time or date in UTC."""
    if text is None:
        return None
    try:
        return bounds.parse_time_or_age(text, now)
    except ValueError:
        message = f"--since {text}: expected a duration such as 10m or 2h, or a UTC time such as 2026-11-27T09:12Z"
        hint = "a duration needs a unit, and a time its date: --since 10m, or --since 2026-11-27T09:12Z"
        raise UsageError(message, hint=hint) from None


def attach(
    run: RunName = "",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster running after the run.")] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Reattach to a run, follow it to the end and clean up.

    Follows the run until it finishes, downloads its outputs, deletes the cluster if the run created it, and prints the
    cost. Ctrl-C detaches and leaves the run running.
    """
    context = command_context(json=json, verbose=verbose)
    record = find_run(context.records, run)
    context.report_clusters_on_signal(record.cluster)
    with print_on_interrupt(context.screen.lines, *reattach_lines(record.run_id)):
        outcome = RunWatcher(context.backend_context(as_target(record.target))).attach(record.run_id, keep=keep)
    if json:
        context.screen.document(outcome.as_json())
    else:
        show_outcome(outcome, context.screen)
    raise typer.Exit(exit_code(outcome))


def cancel(run: RunName = "", verbose: Verbose = False, json: Json = False) -> None:
    """Cancel a run and keep its cluster running.

    Does not download the outputs. They stay on the nodes until the cluster is deleted.
    """
    context = command_context(json=json, verbose=verbose)
    record = find_run(context.records, run)
    context.report_clusters_on_signal(record.cluster)
    again = f"the run may still be running; to cancel it: {command('cloudgpu', 'cancel', record.run_id)}"
    with print_on_interrupt(context.screen.lines, again):
        ended = RunWatcher(context.backend_context(as_target(record.target))).cancel(record.run_id)
    if json:
        context.screen.document({"run_id": ended.run_id, "state": ended.state, "cluster": ended.cluster})
        return
    down = command("cloudgpu", "down", ended.cluster)
    context.screen.line(f"run {ended.run_id} is {ended.state}; to delete its cluster: {down}")
    context.screen.hint(f"to see its output: {command('cloudgpu', 'logs', ended.run_id)}")
