"""`cloudgpu quota`: what the account may run, and how to be allowed more."""

from typing import Annotated, Literal

import typer

from cloudgpu.cli.commands.options import Json, On, whole
from cloudgpu.errors import CloudError

Gpu = Annotated[
    str, typer.Option("--gpu", metavar="GPU", help="V100, A100-80GB:8 ..., or P or G for all types of that quota.")
]
Type = Annotated[str, typer.Option("--instance-type", metavar="TYPE", help="For instance p3dn.24xlarge.")]
Regions = Annotated[
    list[str] | None, typer.Option("--region", help="A region to ask (settings: region); may be repeated.")
]


def quota(  # noqa: PLR0917
    gpu: Gpu = "",
    instance_type: Type = "",
    nodes: Annotated[int, typer.Option("--nodes", parser=whole(1, 1000), help="How many nodes are wanted.")] = 1,
    regions: Regions = None,
    all_regions: Annotated[bool, typer.Option("--all-regions", help="Every region that the account can use.")] = False,
    market: Annotated[
        Literal["on-demand", "spot"] | None, typer.Option("--market", help="Only this one; left out, both.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no cloud; show what was told last.")] = False,
    on: On = None,
    json: Json = False,
) -> None:
    """Show how many nodes the account's quotas allow.

    Limit, use and what is left, in vCPUs, and how to ask for more. Quotas are of one region each, and on-demand and
    spot have their own. What may not be read is unknown, and the command ends with 8.
    """
    from cloudgpu.app.planning.quota_report import MARKETS, lines, wanted
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.quota import quota_json, quota_lines

    wiring = wire(json=json, target=on)
    about = wanted(wiring.catalog, gpu=gpu, instance_type=instance_type)
    target = wiring.settings.target
    named = None if all_regions else regions or [wiring.settings.region]
    rooms = wiring.quota_rooms
    if not offline and (named is None or len(named) > 1):
        wiring.screen.remark(f"asking {target} about {'every region' if named is None else f'{len(named)} regions'}")
    found = rooms.remembered(target, named) if offline else rooms.asked(wiring.cloud(target), named, anew=True)
    told = lines(found, about, (market,) if market else MARKETS, nodes)
    now = wiring.clock.now()
    if json:
        wiring.screen.document(quota_json(told, found, target, now))
    else:
        wiring.screen.lines(quota_lines(told, found, target, now))
    if any(one.trouble for one in found):
        raise typer.Exit(CloudError.exit_code)
