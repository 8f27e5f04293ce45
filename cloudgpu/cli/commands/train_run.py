"""Implement `cloudgpu train`: one run, or the runs of a matrix."""

import typer

from cloudgpu.app.runs.train import TrainingRun, TrainRequest
from cloudgpu.cli.commands.train_matrix import check_matrix_options, train_matrix
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.train import TrainOptions
from cloudgpu.cli.planning.request import find_reusable_cluster
from cloudgpu.cli.planning.requester import requester
from cloudgpu.cli.planning.secrets import ask_for_secrets
from cloudgpu.cli.planning.source import repeated_options, select_plan_source, show_plan
from cloudgpu.cli.render.run import exit_code, show_outcome
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal
from cloudgpu.state.identifiers import require_cluster_name


def run_training(options: TrainOptions) -> None:
    """Plan, ask for confirmation, train and show the outcome."""
    provision = options.provision
    source = select_plan_source(
        options.source, options.recipe, options.environment, on=options.on, region=provision.region
    )
    retry_s, axes = provision.retry_s, check_matrix_options(options)
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
    show_plan(planned, cluster or find_reusable_cluster(context, planned.plan), context, source)
    context.prompts.confirm("Go ahead?", yes=options.yes)
    report_clusters_on_signal(context.records, cluster or find_reusable_cluster(context, planned.plan))
    request = TrainRequest(
        plan=planned.plan,
        recipe_path=planned.path,
        base=planned.base,
        cluster=cluster,
        keep=options.keep,
        keep_on_failure=options.keep_on_failure,
        detach=options.detach,
        retry_s=retry_s,
        environ=environ,
        sharing=options.sharing,
        options=repeated_options(options, source),
        delete_on_interrupt=context.prompts.delete_on_interrupt(provision.on_interrupt),
        delete_unstarted=context.prompts.delete_on_interrupt(
            provision.on_interrupt, "was created, but nothing runs on it yet", default=True
        ),
    )
    runs = context.context()
    outcome = TrainingRun(runs, requester(context)).train(request)
    if options.json:
        context.screen.document(outcome.as_json())
    else:
        show_outcome(outcome, context.screen)
    raise typer.Exit(exit_code(outcome))
