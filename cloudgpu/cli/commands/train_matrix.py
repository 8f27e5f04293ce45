"""`cloudgpu train RECIPE --matrix`: run every combination of parameter values, one run at a time on one cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloudgpu.cli.commands.matrix import write_table
from cloudgpu.cli.commands.saved_plan import PlanSource, show_plan
from cloudgpu.errors import UsageError

if TYPE_CHECKING:
    from cloudgpu.app.matrix.planner import MatrixPlan
    from cloudgpu.app.matrix.request import MatrixRequest
    from cloudgpu.cli.context.wiring import Wiring
    from cloudgpu.recipe.matrix import Axis, Combination


@dataclass(frozen=True)
class MatrixOptions:
    """The options of `train --matrix`. Fields not described here are options of `train` with their usual meaning.

    Attributes:
        axes: Axes as `name=value,value`, one for each parameter or field.
        table: CSV file to which the results are also written, or None.
        fail_fast: Whether to stop after the first failed run.
        again: Whether to rerun combinations that already have a result.
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
    """Return the axes, or an empty tuple if `--matrix` is not used. Called before the slow imports.

    Raises:
        UsageError: The options contradict each other, or an axis is invalid.
    """
    if not options.axes:
        alone = {"--csv": options.table, "--fail-fast": options.fail_fast, "--again": options.again}
        given = [name for name, value in alone.items() if value]
        if given:
            raise UsageError(f"{given[0]} requires --matrix", hint="add --matrix NAME=VALUE,VALUE")
        return ()
    if plan is not None:
        raise UsageError(
            "a saved plan is for a single run, but --matrix starts several", hint="specify the recipe instead of --plan"
        )
    if options.detach:
        message = "--detach cannot be used with --matrix, because the command must keep running to start each run"
        hint = "run the command in tmux, or with nohup and --yes; if it is killed, run it again to resume"
        raise UsageError(message, hint=hint)
    if options.table is not None and not options.table.absolute().parent.is_dir():
        message = f"--csv {options.table}: folder {options.table.parent} does not exist"
        raise UsageError(message, hint="choose a file in an existing folder")
    from cloudgpu.recipe.matrix import read_axes

    return read_axes(options.axes)


def train_matrix(wiring: "Wiring", source: PlanSource, axes: "Sequence[Axis]", options: MatrixOptions) -> None:
    """Plan the whole matrix, ask for confirmation, run the combinations without a result, and show the results.

    Raises:
        CloudGpuError: The matrix cannot be planned, or was aborted.
        typer.Exit: The matrix has finished; contains the exit code.
    """
    from cloudgpu.cli.render.matrix import exit_code, outcome_lines, plan_lines
    from cloudgpu.cli.terminal.interruption import report_clusters_on_signal

    request = _request(wiring, source, _planned(wiring, source, axes), options)
    matrices = wiring.matrices(wiring.settings.target)
    start = matrices.start_progress(request)
    if start.missing:
        cluster = matrices.cluster_name(start, request)
        show_plan(request.plan.lead, cluster, wiring)
        known = wiring.records.last_known(cluster)
        up = known if known is not None and known.state == "up" else None
        wiring.screen.lines(plan_lines(request.plan, start, up, wiring.clock.now()))
        wiring.prompts.confirm("Go ahead?", yes=options.yes)
    else:
        wiring.screen.line("every combination has a result; to rerun them, add --again")
    report_clusters_on_signal(wiring.records, matrices.cluster_name(start, request))
    outcome = matrices.run(request)
    if options.table is not None:
        write_table(options.table, outcome.as_csv())
        outcome = replace(outcome, table=str(options.table))
    if wiring.screen.json_mode:
        wiring.screen.document(outcome.as_json())
    else:
        wiring.screen.lines(outcome_lines(outcome))
    raise typer.Exit(exit_code(outcome))


def _planned(wiring: "Wiring", source: PlanSource, axes: "Sequence[Axis]") -> "MatrixPlan":
    from cloudgpu.app.matrix.planner import plan_matrix
    from cloudgpu.app.planning.planner import Planned, read_sets
    from cloudgpu.cli.context.local import recipe_roots
    from cloudgpu.cli.context.plans import plan_recipe
    from cloudgpu.recipe.loading import loader
    from cloudgpu.recipe.matrix import combinations

    loaded = loader.load(loader.find(source.recipe, roots=recipe_roots()))
    rehearsed = wiring.settings.target == "rehearsal"
    all_combinations = combinations(loaded, axes, read_sets(source.sets), rehearsal=rehearsed)

    def plan_combination(combination: "Combination") -> Planned:
        sets = [*source.sets, *(f"{name}={value}" for name, value in combination.values)]
        return plan_recipe(wiring, source.recipe, sets, offline=False)

    return plan_matrix(loaded, axes, all_combinations, plan_combination)


def _request(wiring: "Wiring", source: PlanSource, plan: "MatrixPlan", options: MatrixOptions) -> "MatrixRequest":
    from cloudgpu.app.matrix.request import MatrixRequest
    from cloudgpu.cli.context.local import environ
    from cloudgpu.state.identifiers import require_cluster_name

    return MatrixRequest(
        plan=plan,
        recipe_path=plan.lead.path,
        base=plan.lead.base,
        sets=source.sets,
        cluster=require_cluster_name(options.cluster) if options.cluster else "",
        keep=options.keep,
        keep_on_failure=options.keep_on_failure,
        fail_fast=options.fail_fast,
        again=options.again,
        retry_s=options.retry_s,
        environ=environ(),
        delete_on_interrupt=wiring.prompts.delete_on_interrupt(options.on_interrupt),
    )
