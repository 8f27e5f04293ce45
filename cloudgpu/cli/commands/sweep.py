"""`cloudgpu sweep`: find every tagged cluster in the account and delete the leftovers."""

from collections.abc import Sequence
from typing import Annotated

import typer

from cloudgpu.backends.sweep.plan import SweepRequest, SweepResult, sweep_error
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json, On, Verbose
from cloudgpu.cli.render.sweep import sweep_json, sweep_plan_lines, swept_lines
from cloudgpu.cli.terminal.interruption import print_on_interrupt, reporting_partial_result
from cloudgpu.cli.terminal.still_running import report_sweep_on_signal
from cloudgpu.targets import is_simulated
from cloudgpu.text import command


def sweep(  # noqa: PLR0917
    regions: Annotated[
        list[str] | None, typer.Option("--region", help="Search only this region, and skip IAM. Repeatable.")
    ] = None,
    owners: Annotated[
        list[str] | None,
        typer.Option(
            "--owner",
            help="Consider only this owner's resources. With --yes, also deletes unexpired ones. Repeatable.",
        ),
    ] = None,
    all_mine: Annotated[
        bool, typer.Option("--all-mine", help="With --yes: also delete your own running clusters.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete the leftovers. Default: only list them.")] = False,
    on: On = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Find tagged clusters in the account and delete leftovers.

    Searches IAM and every enabled region by tag, independently of local records, and shows the owner, expiry and cost
    of each cluster. With --yes, deletes every expired cluster, and your own clusters unless this machine's
    records list them as running. With --owner, considers only that owner's resources, and --yes then deletes even
    unexpired clusters. Also lists storage and machine images, but deletes only disposable storage whose cluster is
    deleted. Exits 6 if a deletion failed, or if IAM or a region could not be searched; resources that are only listed
    do not affect the exit code.
    """
    context = command_context(json=json, verbose=verbose, needs_disk=False, target=on)
    settings, screen = context.settings, context.screen
    deletion = context.deletion_context()
    sweeping = deletion.backend.sweep(deletion, settings.region)
    with screen.working("search"):
        plan = sweeping.plan(regions or [], SweepRequest(settings.owner, frozenset(owners or ()), all_mine))
    now, simulated, swept = context.clock.now(), is_simulated(settings.target), SweepResult(())
    if not json:
        screen.lines(sweep_plan_lines(plan, now, simulated=simulated, width=screen.width))
    again = _command(regions or (), owners or (), on, all_mine=all_mine)
    with (
        reporting_partial_result(lambda: sweep_json(plan, swept, now, simulated=simulated)),
        print_on_interrupt(screen, f"not everything is deleted yet; to continue: {again}"),
    ):
        if yes:
            report_sweep_on_signal(plan.clusters_to_delete, again)
            with screen.working("delete"):
                swept = sweeping.delete_clusters(plan)
                swept = swept.combined_with(sweeping.delete_storage(plan, swept))
        if not json:
            screen.wrapped(swept_lines(plan, swept, yes=yes))
        failure = sweep_error(plan, swept)
        if failure is not None:
            if yes:
                failure.hint = f"to repeat the whole search and the deletion: {again}"
            raise failure
        sweeping.check_recorded(swept)
    if json:
        screen.document(sweep_json(plan, swept, now, simulated=simulated))


def _command(regions: Sequence[str], owners: Sequence[str], on: str | None, *, all_mine: bool) -> str:
    """Return the command that continues an interrupted deletion, with the same limits."""
    words = [word for region in regions for word in ("--region", region)]
    words += [word for owner in owners for word in ("--owner", owner)]
    words += ["--all-mine"] if all_mine else []
    words += ["--on", on] if on else []
    return command("cloudgpu", "sweep", "--yes", *words)
