"""Carry out `cloudgpu train`: one run, or the runs of a matrix."""

import typer

from cloudgpu.app.runs.train import TrainRequest
from cloudgpu.cli.commands.saved_plan import select_plan_source, show_plan
from cloudgpu.cli.commands.train_matrix import check_matrix_options, train_matrix
from cloudgpu.cli.commands.train_options import TrainOptions
from cloudgpu.cli.context.local import environ
from cloudgpu.cli.context.plans import find_reusable_cluster
from cloudgpu.cli.context.wiring import wire
from cloudgpu.cli.render.run import exit_code, show_outcome
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal
from cloudgpu.state.identifiers import require_cluster_name


def run_training(options: TrainOptions) -> None:
    """Plan, ask for confirmation, train and show the outcome.

    Raises:
        CloudGpuError: The options are invalid, or training failed.
        typer.Exit: Training has finished; contains the exit code.
    """
    provision = options.provision
    source = select_plan_source(options.source, options.recipe, on=options.on, region=provision.region)
    retry_s, axes = provision.retry_s, check_matrix_options(options)
    wiring = wire(json=options.json, target=source.target, region=source.region, **provision.settings)
    cluster = require_cluster_name(options.cluster) if options.cluster else ""
    if axes:
        train_matrix(wiring, source, axes, options)
    planned = source.planned(wiring)
    show_plan(planned, cluster or find_reusable_cluster(wiring, planned.plan), wiring)
    wiring.prompts.confirm("Go ahead?", yes=options.yes)
    report_clusters_on_signal(wiring.records, cluster or find_reusable_cluster(wiring, planned.plan))
    request = TrainRequest(
        plan=planned.plan,
        recipe_path=planned.path,
        base=planned.base,
        cluster=cluster,
        keep=options.keep,
        keep_on_failure=options.keep_on_failure,
        detach=options.detach,
        retry_s=retry_s,
        environ=environ(),
        delete_on_interrupt=wiring.prompts.delete_on_interrupt(provision.on_interrupt),
    )
    outcome = wiring.training(planned.plan.target).train(request)
    if options.json:
        wiring.screen.document(outcome.as_json())
    else:
        show_outcome(outcome, wiring.screen)
    raise typer.Exit(exit_code(outcome))
