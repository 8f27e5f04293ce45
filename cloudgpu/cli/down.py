"""`cloudgpu down`: end a cluster, and say so only when the cloud confirms it."""

from typing import Annotated, Any

import typer

from cloudgpu.cli.options import Json, On, Region, Yes
from cloudgpu.cli.screen import Screen


def down(
    name: Annotated[
        str, typer.Argument(metavar="[CLUSTER]", help="The cluster; may be left out when only one is up.")
    ] = "",
    on: On = None,
    region: Region = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """End a cluster, and confirm that nothing is left.

    Ends everything that carries the cluster's tag. Exits 6 until a search for the tag is empty; `down` of what is
    gone already says so and exits 0.
    """
    from cloudgpu.app.stages import Stages
    from cloudgpu.cli.interruption import come_to, told_when_interrupted
    from cloudgpu.cli.show_cluster import ended_json, ended_lines, unfinished_json
    from cloudgpu.cli.wiring import wire

    wiring = wire(json=json, target=on, region=region)
    cluster = name or wiring.only_cluster()
    if not cluster:
        _say_nothing(wiring.screen, simulated=wiring.settings.target == "rehearsal", json=json)
        return
    wiring.confirm(f"End cluster {cluster}?", yes=yes or bool(name))
    stages = Stages(wiring.clock, wiring.say)
    unfinished = f"not everything is ended yet; cloudgpu down {cluster} goes on with it"
    with (
        come_to(lambda: unfinished_json(cluster, wiring.records.last_known(cluster), stages)),
        told_when_interrupted(wiring.screen, unfinished),
        stages.stage("down"),
    ):
        ended = wiring.teardown(cluster).down(cluster, wiring.settings.region)
    if json:
        wiring.screen.document(ended_json(ended, stages))
    else:
        wiring.screen.lines(ended_lines(ended))


def _say_nothing(screen: Screen, *, simulated: bool, json: bool) -> None:
    if not json:
        screen.line("no cluster is up; nothing to end")
        return
    nothing: dict[str, Any] = {"cluster": None, "run_id": "", "known": False, "instances_ended": [], "strays_ended": []}
    cost = {"usd": "0", "simulated": simulated}
    screen.document({**nothing, "cost": cost, "simulated": simulated, "left": [], "stages": []})
