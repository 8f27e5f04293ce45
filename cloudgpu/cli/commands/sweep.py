"""`cloudgpu sweep`: everything of anybody's clusters in the account, and the end of what may go."""

from typing import Annotated

import typer

from cloudgpu.cli.commands.options import Json, On


def sweep(
    regions: Annotated[
        list[str] | None, typer.Option("--region", help="Only there, and not in IAM; may be repeated.")
    ] = None,
    owners: Annotated[
        list[str] | None, typer.Option("--owner", help="Only what is this person's, expired or not; may be repeated.")
    ] = None,
    all_mine: Annotated[
        bool, typer.Option("--all-mine", help="Also your clusters that this machine knows up.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="End what may go; without it, it is only listed.")] = False,
    on: On = None,
    json: Json = False,
) -> None:
    """List clusters of anybody by their tags, and end leftovers.

    Looks through every enabled region and IAM, without any record: whose it is, until when, what it costs. With --yes
    ends what is past its expiry, and what is yours and not up; other people's only by --owner. Storage and machine
    images are listed too; of those only storage that was to end with a cluster goes, once that is gone. Exits 6 when
    something is left or could not be asked.
    """
    from cloudgpu.app.sweep.cluster_resources import SweepRequest
    from cloudgpu.app.sweep.sweep import Sweeping, Swept, problem
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.sweep import seen_lines, sweep_json, swept_lines
    from cloudgpu.cli.terminal.interruption import reporting_partial_result, tell_what_is_swept, told_when_interrupted

    wiring = wire(json=json, needs_disk=False, target=on)
    settings, screen = wiring.settings, wiring.screen
    sweeping = Sweeping(wiring.cloud_cleanup_context(settings.target), wiring.images(settings.target))
    seen = sweeping.look(regions or [], SweepRequest(settings.owner, frozenset(owners or ()), all_mine))
    now, simulated, swept = wiring.clock.now(), settings.target == "rehearsal", Swept(())
    if not json:
        screen.lines(seen_lines(seen, now, simulated=simulated))
    with (
        reporting_partial_result(lambda: sweep_json(seen, swept, now, simulated=simulated)),
        told_when_interrupted(screen, "not everything is ended yet; cloudgpu sweep --yes goes on with it"),
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
