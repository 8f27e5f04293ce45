"""`cloudgpu sweep`: find every tagged cluster in the account and delete the leftovers."""

from typing import Annotated

import typer

from cloudgpu.cli.commands.options import Json, On


def sweep(
    regions: Annotated[
        list[str] | None, typer.Option("--region", help="Search only this region, and skip IAM. Repeatable.")
    ] = None,
    owners: Annotated[
        list[str] | None, typer.Option("--owner", help="Only this owner's resources, running or not. Repeatable.")
    ] = None,
    all_mine: Annotated[
        bool, typer.Option("--all-mine", help="With --yes: delete your own running clusters too.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete the leftovers, without a prompt. Default: only list them.")
    ] = False,
    on: On = None,
    json: Json = False,
) -> None:
    """Find tagged clusters in the account and delete leftovers.

    Searches every enabled region and IAM by tag, without local records, and shows owner, expiry and cost. With --yes,
    deletes every expired cluster, and your own clusters unless this machine's records say that they are running. Other
    users' unexpired clusters need --owner. Also lists storage and machine images, but deletes only disposable storage
    whose cluster is deleted. Exits 6 if something is left or a region could not be searched.
    """
    from cloudgpu.app.sweep.cluster_resources import SweepRequest
    from cloudgpu.app.sweep.sweep import Sweep, SweepResult, problem
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.sweep import seen_lines, sweep_json, swept_lines
    from cloudgpu.cli.terminal.interruption import reporting_partial_result, tell_what_is_swept, told_when_interrupted

    wiring = wire(json=json, needs_disk=False, target=on)
    settings, screen = wiring.settings, wiring.screen
    sweeping = Sweep(wiring.cloud_cleanup_context(settings.target), wiring.images(settings.target))
    seen = sweeping.look(regions or [], SweepRequest(settings.owner, frozenset(owners or ()), all_mine))
    now, simulated, swept = wiring.clock.now(), settings.target == "rehearsal", SweepResult(())
    if not json:
        screen.lines(seen_lines(seen, now, simulated=simulated))
    with (
        reporting_partial_result(lambda: sweep_json(seen, swept, now, simulated=simulated)),
        told_when_interrupted(screen, "not everything is deleted yet; to continue: cloudgpu sweep --yes"),
    ):
        if yes:
            tell_what_is_swept(seen.going)
            swept = sweeping.end(seen.going, settings.region)
            swept = swept.with_more(sweeping.end_storage(seen.storage_going, swept))
        if not json:
            screen.lines(swept_lines(seen, swept, yes=yes))
        failure = problem(seen, swept)
        if failure is not None:
            raise failure
        sweeping.check_recorded(swept)
    if json:
        screen.document(sweep_json(seen, swept, now, simulated=simulated))
