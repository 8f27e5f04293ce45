"""Implement `cloudgpu train`: one run, or with `--matrix` every combination of values, one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import typer

from cloudgpu.app.matrix.planner import MatrixPlan, MatrixRequest, plan_matrix
from cloudgpu.app.matrix.train import MatrixRunner
from cloudgpu.app.planning.planner import Planned, name_of_cluster, read_sets
from cloudgpu.app.runs.train import TrainingRun, TrainRequest
from cloudgpu.cli.commands.matrix import exit_code as matrix_exit_code
from cloudgpu.cli.commands.matrix import outcome_lines, plan_lines, write_table
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.planning import (
    PlanSource,
    plan_recipe,
    recipe_roots,
    repeated_options,
    requester,
    select_plan_source,
    show_plan,
)
from cloudgpu.cli.render.run import exit_code, show_outcome
from cloudgpu.cli.terminal.prompts import Prompts
from cloudgpu.cli.train_options import SecretOption, TrainOptions
from cloudgpu.errors import UsageError
from cloudgpu.plan.checks.environment import required_variables
from cloudgpu.recipe import loader
from cloudgpu.recipe.matrix import Axis, Combination, combinations, read_axes
from cloudgpu.run.start import secret_values
from cloudgpu.state.identifiers import require_cluster_name
from cloudgpu.targets import is_simulated
from cloudgpu.text import command


def ask_for_secrets(
    planned: Planned, environ: Mapping[str, str], options: Sequence[SecretOption], prompts: Prompts
) -> tuple[Planned, Mapping[str, str]]:
    """Return the environment with every secret of a plan, and the plan without the finding that one is missing.

    Secrets that are not in the environment are asked for if there is a terminal.
    """
    recipe = planned.plan.recipe
    needed, known = recipe.environment.secrets, required_variables(recipe)
    unknown = next((option.name for option in options if option.name not in known), "")
    if unknown:
        message = f"--secret {unknown}: the saved plan does not have this secret"
        again = command("cloudgpu", "plan", "RECIPE", "--secret", unknown, "--out", "FILE")
        raise UsageError(message, hint=f"save the plan again with `{again}`")
    missing = [name for name in needed if name not in environ]
    if not missing or not prompts.are_possible:
        secret_values(needed, environ)
        return planned, environ
    environ = {**environ, **{name: prompts.ask_for_secret(name) for name in missing}}
    findings = tuple(finding for finding in planned.plan.findings if finding.check != "secret-missing")
    return replace(planned, plan=replace(planned.plan, findings=findings)), environ


def run_training(options: TrainOptions) -> None:
    """Plan, ask for confirmation, train and show the outcome."""
    provision = options.provision
    source = select_plan_source(
        options.source, options.recipe, options.environment, on=options.on, region=provision.region
    )
    _ = provision.retry_s  # a wrong duration is rejected before anything is planned
    axes = check_matrix_options(options)
    context = command_context(
        json=options.json,
        verbose=options.verbose,
        target=source.target,
        region=source.region,
        allowed_paths=options.source.allowed_paths,
        **provision.settings,
    )
    cluster = require_cluster_name(options.cluster) if options.cluster else ""
    if axes:
        train_matrix(context, source, axes, options)
    planned, environ = ask_for_secrets(
        source.planned(context),
        {**context.environment.environ, **source.secrets},
        options.environment.secrets,
        context.prompts,
    )
    show_plan(planned, name_of_cluster(context.records, context.clock, planned.plan, cluster), context, source)
    context.prompts.confirm("Go ahead?", yes=options.yes)
    context.report_clusters_on_signal(name_of_cluster(context.records, context.clock, planned.plan, cluster))
    request = _train_request(context, source, planned, options, environ)
    outcome = TrainingRun(context.backend_context(), requester(context)).train(request)
    if options.json:
        context.screen.document(outcome.as_json())
    else:
        show_outcome(outcome, context.screen)
    raise typer.Exit(exit_code(outcome))


def check_matrix_options(options: TrainOptions) -> tuple[Axis, ...]:
    """Return the axes of the matrix, or an empty tuple if `--matrix` is not used."""
    matrix = options.matrix
    if not matrix.axes:
        alone = {"--csv": matrix.csv, "--fail-fast": matrix.fail_fast, "--again": matrix.again}
        given = [name for name, value in alone.items() if value]
        if given:
            raise UsageError(f"{given[0]} requires --matrix", hint="add --matrix NAME=VALUE,VALUE")
        return ()
    if options.source.plan is not None:
        raise UsageError(
            "a saved plan is for a single run, but --matrix starts several", hint="specify the recipe instead of --plan"
        )
    if options.detach:
        message = "--detach cannot be used with --matrix, because the command must keep running to start each run"
        hint = "run the command in tmux, or with nohup and --yes; if it is killed, run it again to resume"
        raise UsageError(message, hint=hint)
    if matrix.csv is not None and not matrix.csv.absolute().parent.is_dir():
        message = f"--csv {matrix.csv}: folder {matrix.csv.parent} does not exist"
        raise UsageError(message, hint="choose a file in an existing folder")
    return read_axes(matrix.axes)


def train_matrix(context: CliContext, source: PlanSource, axes: Sequence[Axis], options: TrainOptions) -> NoReturn:
    """Plan the whole matrix, ask for confirmation, run the combinations without a result, and show the results.

    Raises:
        typer.Exit: Always, with the exit code of the matrix.
    """
    planned = _plan_matrix(context, source, axes)
    lead, environ = ask_for_secrets(
        planned.lead,
        {**context.environment.environ, **source.secrets},
        options.environment.secrets,
        context.prompts,
    )
    planned = replace(planned, lead=lead)
    request = MatrixRequest(
        planned,
        _train_request(context, source, lead, options, environ),
        source.sets,
        fail_fast=options.matrix.fail_fast,
        again=options.matrix.again,
    )
    backend_context, owner = context.backend_context(), requester(context)
    matrices = MatrixRunner(backend_context, TrainingRun(backend_context, owner), owner)
    start = matrices.start_progress(request)
    if start.missing:
        cluster = matrices.cluster_name(start, request)
        show_plan(request.plan.lead, cluster, context, source)
        known = context.records.last_known(cluster)
        up = known if known is not None and known.state == "up" else None
        context.screen.lines(plan_lines(request.plan, start, up, context.clock.now(), context.screen.width))
        context.prompts.confirm("Go ahead?", yes=options.yes)
    else:
        context.screen.line("every combination has a result; to rerun them, add --again")
    context.report_clusters_on_signal(matrices.cluster_name(start, request))
    outcome = matrices.run(request)
    csv = options.matrix.csv
    if csv is not None:
        write_table(csv, outcome.as_csv())
        outcome = replace(outcome, table=str(csv))
    if context.screen.json_mode:
        context.screen.document(outcome.as_json())
    else:
        context.screen.lines(outcome_lines(outcome, context.screen.width))
    raise typer.Exit(matrix_exit_code(outcome))


def _plan_matrix(context: CliContext, source: PlanSource, axes: Sequence[Axis]) -> MatrixPlan:
    loaded = loader.load(loader.find(source.recipe, roots=recipe_roots()), allowed=context.settings.allowed_paths)
    rehearsed = is_simulated(context.settings.target)
    all_combinations = combinations(loaded, axes, read_sets(source.sets), rehearsal=rehearsed)

    def plan_combination(combination: Combination) -> Planned:
        sets = [*source.sets, *(f"{name}={value}" for name, value in combination.values)]
        return plan_recipe(context, source.recipe, sets, offline=False, secrets=source.secrets)

    return plan_matrix(loaded, axes, all_combinations, plan_combination)


def _train_request(
    context: CliContext, source: PlanSource, planned: Planned, options: TrainOptions, environ: Mapping[str, str]
) -> TrainRequest:
    on_interrupt = options.provision.on_interrupt
    return TrainRequest(
        plan=planned.plan,
        recipe_path=planned.path,
        base=planned.base,
        cluster=require_cluster_name(options.cluster) if options.cluster else "",
        keep=options.keep,
        keep_on_failure=options.keep_on_failure,
        detach=options.detach,
        retry_s=options.provision.retry_s,
        environ=environ,
        sharing=options.sharing,
        options=repeated_options(options, source),
        delete_on_interrupt=context.prompts.delete_on_interrupt(on_interrupt),
        delete_unstarted=context.prompts.delete_on_interrupt(
            on_interrupt, "was created, but nothing runs on it yet", default=True
        ),
    )
