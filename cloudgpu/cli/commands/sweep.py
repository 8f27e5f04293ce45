"""`cloudgpu sweep`: find every tagged cluster in the account and delete the leftovers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

import typer

from cloudgpu.app.cluster_status import swept_clusters_lines
from cloudgpu.backends.lifecycle.results import leftover_lines
from cloudgpu.backends.storage import RetainedResource
from cloudgpu.backends.sweep import (
    ClusterResources,
    SweepDecision,
    SweepPlan,
    SweepRequest,
    SweepResult,
    sweep_error,
)
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options import Json, On, Verbose
from cloudgpu.cli.terminal.interruption import interruptions, print_on_interrupt, reporting_partial_result
from cloudgpu.cli.terminal.number_format import age, format_time, money, relative_time
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.targets import is_simulated
from cloudgpu.text import command, plural

_UNKNOWN = "unknown"
_NOUNS = {
    "elastic-ip": "elastic IP",
    "nat-gateway": "NAT gateway",
    "public-ip": "public IP",
    "vpc": "VPC",
    "vpc-endpoint": "VPC endpoint",
}


def sweep_json(plan: SweepPlan, swept: SweepResult, now: datetime, *, simulated: bool) -> dict[str, Any]:
    """Return the documented output of `sweep --json`."""
    ended = {(resource.label, resource.token) for resource in swept.ended}
    return {
        "simulated": simulated,
        "regions": list(plan.regions),
        "unknown": [{"region": region, "why": why} for region, why in plan.unknown],
        "unseen_storage": [{"region": region, "why": why} for region, why in plan.unseen],
        "clusters": [
            {
                **resource.as_json(now),
                "goes": decision.may_delete,
                "why": decision.why,
                "ended": (resource.label, resource.token) in ended,
            }
            for resource, decision in plan.clusters
        ],
        **{
            key: [
                {
                    **resource.sweep_json(now),
                    "goes": decision.may_delete,
                    "why": decision.why,
                    "ended": (resource.label, resource.token) in ended,
                }
                for resource, decision in plan.retained
                if resource.noun == noun
            ]
            for key, noun in (("storage", "storage"), ("images", "image"))
        },
        "left": [f"{resource.label}: {line}" for resource, err in swept.failed for line in leftover_lines(err)],
    }


def sweep_plan_lines(plan: SweepPlan, now: datetime, *, simulated: bool, width: int | None = None) -> list[str]:
    """Return one block per cluster, storage resource and image, then the regions that could not be searched."""
    where = plural(len(plan.regions), "region")
    clusters = plural(len(plan.clusters), "cluster") if plan.clusters else "no cluster resources"
    head = f"{clusters} in {where}{' (simulated)' if simulated else ''}"
    blocks = [line for resource, decision in plan.clusters for line in _block(resource, decision, now)]
    blocks += [line for resource, decision in plan.retained for line in _retained_lines(resource, decision, now)]
    blocks += [f"storage and images in {region}: unknown: {why}" for region, why in plan.unseen]
    lines = [head, *blocks, *(f"{_place(region)}: unknown: {why}" for region, why in plan.unknown)]
    return wrap_lines(lines, width)


def swept_lines(plan: SweepPlan, swept: SweepResult, *, yes: bool) -> list[str]:
    """Return lines about the deleted resources or, without `yes`, how to delete them. The error reports failures."""
    if yes:
        return [f"deleted {resource.label}, verified by tag search" for resource in swept.ended]
    to_delete = [
        *(resource.label for resource in plan.clusters_to_delete),
        *(resource.label for resource in plan.storage_to_delete),
    ]
    if not to_delete:
        return []
    counts = [(len(plan.clusters_to_delete), "cluster"), (len(plan.storage_to_delete), "storage resource")]
    what = " and ".join(plural(count, noun) for count, noun in counts if count)
    return [f"nothing was deleted; to delete {what}, add --yes: {', '.join(to_delete)}"]


def _retained_lines(resource: RetainedResource, decision: SweepDecision, now: datetime) -> Iterator[str]:
    owner = f"owner {resource.owner}" if resource.owner else "owner unknown"
    since = f"created {age((now - resource.since).total_seconds())} ago" if resource.since else "age unknown"
    size = "size unknown" if resource.size_gib is None else f"{resource.size_gib.quantize(Decimal(1))} GiB"
    most = "at most " if resource.noun == "image" else ""
    yield f"{resource.label}  {owner}; {resource.kind} {resource.id} in {resource.region}"
    yield f"  {size}, {most}{_money(resource.monthly_usd)} a month, {since}"
    yield f"  {'to delete' if decision.may_delete else 'kept'}: {decision.why}"


def _block(cluster: ClusterResources, decision: SweepDecision, now: datetime) -> Iterator[str]:
    owner = f"owner {cluster.owner}" if cluster.owner else "owner unknown"
    team = f", team {cluster.team}" if cluster.team else ""
    expiry = (
        f"expires {format_time(cluster.expires_at)}, {relative_time(cluster.expires_at, now)}"
        if cluster.expires_at
        else "expiry unknown"
    )
    if cluster.unreadable_expiry:
        expiry = f"expiry unreadable: {cluster.unreadable_expiry}{f'; {expiry}' if cluster.expires_at else ''}"
    since = f"for {age((now - cluster.since).total_seconds())}" if cluster.since else "age unknown"
    yield f"{cluster.cluster}  {owner + team}; {expiry}"
    if cluster.billed_in:
        yield f"  no resources in the cloud, but its ledger rows in {_places(cluster.billed_in)} are open"
    else:
        yield f"  {_machines(cluster)} in {_places(cluster.regions)}, {since}"
        yield f"  {_costs(cluster, now)}"
    others = Counter(thing.kind for thing in cluster.things if thing.kind != "instance")
    if others:
        yield f"  and {', '.join(plural(count, _noun(kind)) for kind, count in sorted(others.items()))}"
    yield f"  {'to delete' if decision.may_delete else 'kept'}: {decision.why}"


def _place(region: str) -> str:
    return "IAM" if region == "global" else region


def _places(regions: Sequence[str]) -> str:
    """Format the regions, with IAM last, because IAM contains no nodes."""
    return " and ".join(_place(region) for region in sorted(regions, key=lambda region: region == "global"))


def _noun(kind: str) -> str:
    return _NOUNS.get(kind) or kind.replace("-", " ")


def _machines(cluster: ClusterResources) -> str:
    if not cluster.instances:
        return "no instances"
    counts = Counter((instance.instance_type, instance.market) for instance in cluster.instances)
    return ", ".join(f"{count} x {instance_type} {market}" for (instance_type, market), count in sorted(counts.items()))


def _costs(cluster: ClusterResources, now: datetime) -> str:
    """Return the costs, per month only if no expiry ends them."""
    more = f"{', '.join(f'{_noun(kind)}s' for kind in cluster.unpriced)} at unknown prices" if cluster.unpriced else ""
    if cluster.hourly_usd == 0:
        return f"costs nothing except {more}" if more else "costs nothing"
    hourly, spent, monthly = (_money(usd) for usd in (cluster.hourly_usd, cluster.spent_usd, cluster.monthly_usd))
    expires = cluster.expires_at is not None and cluster.expires_at > now
    parts = [f"{hourly} an hour", f"{spent} so far", *([] if expires else [f"{monthly} a month if not deleted"])]
    return ", ".join([*parts, *([f"and {more}"] if more else [])])


def _money(usd: Decimal | None) -> str:
    return _UNKNOWN if usd is None else money(usd)


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
        print_on_interrupt(screen.lines, f"not everything is deleted yet; to continue: {again}"),
    ):
        if yes:
            interruptions.tell(lambda: swept_clusters_lines(plan.clusters_to_delete, again))
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
