"""`cloudgpu train RECIPE --matrix`: every combination of some values, one after the other in one cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloudgpu.cli.commands.matrix import write_table
from cloudgpu.cli.commands.saved_plan import GpuQuery, show
from cloudgpu.errors import UsageError

if TYPE_CHECKING:
    from cloudgpu.app.matrix.planner import MatrixPlan
    from cloudgpu.app.matrix.request import MatrixRequest
    from cloudgpu.cli.context.wiring import Wiring
    from cloudgpu.recipe.matrix import Axis, Combination


@dataclass(frozen=True)
class MatrixOptions:
    """What was typed.

    Attributes:
        axes: `name=value,value`, one for each parameter or field.
        table: Where to write the table; None for the home alone.
        fail_fast: Begin no further run after one that failed.
        again: Run also what has a result.
        cluster: As for `train`, and so are the others.
    """

    axes: tuple[str, ...]
    table: Path | None
    fail_fast: bool
    again: bool
    detach: bool
    cluster: str
    keep: bool
    keep_on_failure: bool
    retry_s: int
    on_interrupt: str
    yes: bool


def check_options(options: MatrixOptions, plan: Path | None) -> "tuple[Axis, ...]":
    """The axes, before anything is loaded for them; none without `--matrix`.

    Raises:
        UsageError: Options do not go together, or an axis is none.
    """
    if not options.axes:
        alone = {"--csv": options.table, "--fail-fast": options.fail_fast, "--again": options.again}
        given = [name for name, value in alone.items() if value]
        if given:
            raise UsageError(f"{given[0]} goes with --matrix", hint="--matrix NAME=VALUE,VALUE, or leave it out")
        return ()
    if plan is not None:
        raise UsageError("--plan is of one run, and --matrix makes several", hint="name the recipe instead")
    if options.detach:
        message = "--detach and --matrix: somebody has to start the next run when one has ended"
        hint = "run the command in tmux, or with nohup and --yes; killed, the same command goes on with what is missing"
        raise UsageError(message, hint=hint)
    if options.table is not None and not options.table.absolute().parent.is_dir():
        message = f"--csv {options.table}: there is no folder {options.table.parent}"
        raise UsageError(message, hint="name a file in a folder that is there")
    from cloudgpu.recipe.matrix import read_axes

    return read_axes(options.axes)


def train_matrix(wiring: "Wiring", wanted: GpuQuery, axes: "Sequence[Axis]", options: MatrixOptions) -> None:
    """Plan all of it, ask once, run what is missing, show the table.

    Raises:
        CloudGpuError: It cannot be planned, or was broken off.
        typer.Exit: It ended; with the code that says how.
    """
    from cloudgpu.cli.render.matrix import exit_code, outcome_lines, plan_lines
    from cloudgpu.cli.terminal.interruption import tell_what_runs

    request = _request(wiring, wanted, _planned(wiring, wanted, axes), options)
    matrices = wiring.matrices(wiring.settings.target)
    begun = matrices.beginning(request)
    if begun.missing:
        cluster = matrices.cluster_name(begun, request)
        show(request.plan.lead, cluster, wiring)
        known = wiring.records.last_known(cluster)
        up = known if known is not None and known.state == "up" else None
        wiring.screen.lines(plan_lines(request.plan, begun, up, wiring.clock.now()))
        wiring.questions.confirm("Go ahead?", yes=options.yes)
    else:
        wiring.screen.line("every combination has its result; --again runs them once more")
    tell_what_runs(wiring.records, matrices.cluster_name(begun, request))
    outcome = matrices.run(request)
    if options.table is not None:
        write_table(options.table, outcome.as_csv())
        outcome = replace(outcome, table=str(options.table))
    if wiring.screen.json_mode:
        wiring.screen.document(outcome.as_json())
    else:
        wiring.screen.lines(outcome_lines(outcome))
    raise typer.Exit(exit_code(outcome))


def _planned(wiring: "Wiring", wanted: GpuQuery, axes: "Sequence[Axis]") -> "MatrixPlan":
    from cloudgpu.app.matrix.planner import plan_matrix
    from cloudgpu.app.planning.planner import Planned, read_sets
    from cloudgpu.cli.context.wiring import recipe_roots
    from cloudgpu.recipe import loading
    from cloudgpu.recipe.matrix import combinations

    loaded = loading.load(loading.find(wanted.recipe, roots=recipe_roots()))
    rehearsed = wiring.settings.target == "rehearsal"
    every = combinations(loaded, axes, read_sets(wanted.sets), rehearsal=rehearsed)

    def ask(one: "Combination") -> Planned:
        sets = [*wanted.sets, *(f"{name}={value}" for name, value in one.values)]
        return wiring.planned(wanted.recipe, sets, offline=False)

    return plan_matrix(loaded, axes, every, ask)


def _request(wiring: "Wiring", wanted: GpuQuery, plan: "MatrixPlan", options: MatrixOptions) -> "MatrixRequest":
    from cloudgpu.app.matrix.request import MatrixRequest
    from cloudgpu.cli.context.wiring import environ
    from cloudgpu.state.identifiers import checked_cluster

    return MatrixRequest(
        plan=plan,
        recipe_path=plan.lead.path,
        base=plan.lead.base,
        sets=wanted.sets,
        cluster=checked_cluster(options.cluster) if options.cluster else "",
        keep=options.keep,
        keep_on_failure=options.keep_on_failure,
        fail_fast=options.fail_fast,
        again=options.again,
        retry_s=options.retry_s,
        environ=environ(),
        end_on_interrupt=wiring.questions.end_on_interrupt(options.on_interrupt),
    )
