"""`cloudgpu storage`: manage storage that outlives clusters."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Any

import typer

from cloudgpu.app.storage import StorageOptions, make_storage_request, request_price
from cloudgpu.backends.storage import CreatedStorage, DeletedStorage, RetainedResource, StorageRequest
from cloudgpu.bounds import MAX_SIZE_GIB
from cloudgpu.catalog.prices_and_quotas import Price
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options import Json, On, OneRegion, Owner, Team, Verbose, Yes, integer_parser
from cloudgpu.cli.render.error import damaged_line
from cloudgpu.cli.terminal.number_format import age, money
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_paragraph
from cloudgpu.cloud import TaggedStorage
from cloudgpu.engine.config import read_list_setting, storage_program_config
from cloudgpu.plan.network_access import GATEWAYS, NetworkRequest, network_request
from cloudgpu.plan.subnets import MountSubnets, places_by_reason
from cloudgpu.recipe.sources import Deployment, StorageKind
from cloudgpu.state.storage_records import StorageRecord
from cloudgpu.targets import as_target, is_simulated
from cloudgpu.text import command, plural

_COLUMNS = (
    Column("name"),
    Column("kind", priority=1),
    Column("size", right=True, priority=1),
    Column("$/month", right=True, priority=1),
    Column("age", right=True, priority=6, narrow="hide"),
    Column("region", priority=4),
    Column("owner", priority=7, narrow="hide"),
    Column("data", priority=5),
    Column("used by", priority=3, narrow="wrap", least=20),
    Column("state", priority=2),
)
_WIDTH = 100
_UNKNOWN = "unknown"
app = typer.Typer(help="Manage storage that outlives clusters.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Storage name: lowercase letters, digits and dashes.")]
Kind = Annotated[
    StorageKind,
    typer.Option(
        "--kind",
        help="efs: shared file system. lustre: parallel file system in one zone. ebs: disk in one zone. s3: bucket.",
    ),
]


def creation_question(
    request: StorageRequest, price: Price | None, monthly_usd: Decimal | None, *, simulated: bool
) -> str:
    """Return the confirmation prompt of `storage create`."""
    size = f" of {request.config['sizeGib']} GiB" if request.config.get("sizeGib") else ""
    place = request.config.get("zone") or request.region
    prefix = "AWS would charge " if simulated else ""
    return f"Create {request.kind} storage {request.name}{size} in {place}: {prefix}{_price(price, monthly_usd)}?"


def subnet_lines(chosen: MountSubnets | None, network: NetworkRequest) -> list[str]:
    """Return the subnets of a new file system and why they were chosen, for the confirmation prompt."""
    if chosen is None:
        return []
    rows = [(zone, subnet.id, subnet.description) for zone, subnet in chosen.chosen.items()]
    lines = [f"subnets: {line}" for line in places_by_reason(chosen.network, rows)]
    lines += [f"not mountable in {zone}: {decision.why}" for zone, decision in chosen.excluded.items()]
    if chosen.network.unknown:
        lines.append(f"subnets: unknown, the lowest ID of each zone is used: {chosen.network.unknown}")
    if network.create_vpc or network.public_address in GATEWAYS:
        lines.append("clusters with these settings get a VPC of their own and cannot mount the storage")
    return lines


def created_lines(created: CreatedStorage, price: Price | None, monthly_usd: Decimal | None) -> list[str]:
    """Return the storage that was created, its cost, and how to use and delete it."""
    record = created.record
    state = "is ready" if created.made else "already exists and matches the request"
    simulated = " (simulated)" if record.simulated else ""
    lines = [f"{record.kind} storage {record.name} {state}{simulated}"]
    lines += [f"  {label}: {text}" for label, text in _reached(record)]
    would = "AWS would charge " if record.simulated else ""
    lines.append(f"  costs: {would}{_price(price, monthly_usd)} until it is deleted")
    delete = command("cloudgpu", "storage", "delete", record.name, *([] if record.disposable else ["--delete-data"]))
    lines.append(f"  in a recipe: storage: [{{name: {record.name}, to: /data/{record.name}}}]")
    return [*lines, f"  deleting a cluster does not delete the storage; to delete it: {delete}"]


def created_json(created: CreatedStorage, monthly_usd: Decimal | None) -> dict[str, Any]:
    """Return the documented output of `storage create --json`."""
    record = created.record
    return {
        "name": record.name,
        "kind": record.kind,
        "made": created.made,
        "region": record.region,
        "disposable": record.disposable,
        **record.access_details,
        "subnets": list(read_list_setting(record.config.get("subnetIds", ""))),
        "monthly_usd": None if monthly_usd is None else str(monthly_usd),
        "simulated": record.simulated,
        "left": [f"storage {record.name} exists until you delete it"],
    }


def storage_lines(rows: Sequence[RetainedResource], now: datetime, width: int | None = None) -> list[str]:
    """Return a table of storage and the total monthly cost."""
    if not rows:
        return ["no storage"]
    table = Table(_COLUMNS, [_row(row, now) for row in rows])
    return [*table.lines(width), "", *_sum(rows, min(width or _WIDTH, _WIDTH))]


def deletion_question(present: TaggedStorage) -> str:
    """Return the confirmation prompt of `storage delete`."""
    data = present.data
    size = "of unknown size" if data is None or data.size_gib is None else _size(data.size_gib)
    return f"Delete {present.kind} storage {present.name} ({size}) and all its data?"


def deleted_json(deleted: DeletedStorage) -> dict[str, Any]:
    """Return the documented output of `storage delete --json`.

    `left` is always empty: if a resource remains, the command fails instead.
    """
    return {"name": deleted.name, "known": deleted.known, "ended": list(deleted.parts), "left": []}


def deleted_lines(deleted: DeletedStorage) -> list[str]:
    """Return lines about the deleted storage and its AWS resources."""
    if not deleted.parts and not deleted.known:
        return [f"there is no storage {deleted.name}: no resource has its tag; nothing to delete"]
    parts = [f"  {part}" for part in deleted.parts]
    return [f"storage {deleted.name} is deleted, verified by tag search", *parts]


def _price(price: Price | None, monthly_usd: Decimal | None) -> str:
    if price is None:
        return "an unknown price in this region"
    if monthly_usd is None:
        return f"{money(price.usd)} a month per GiB stored"
    return f"{money(monthly_usd)} a month"


def _reached(record: StorageRecord) -> list[tuple[str, str]]:
    shown = record.access_details
    labels = (
        ("id", "id"),
        ("zone", "zone"),
        ("address", "address"),
        ("mount_name", "mount name"),
        ("security_group_id", "security group for nodes that mount it"),
        ("url", "url"),
    )
    reached = [(label, str(shown[key])) for key, label in labels if shown[key]]
    subnets = read_list_setting(record.config.get("subnetIds", ""))
    return [*reached, *([("subnets", ", ".join(map(str, subnets)))] if subnets else [])]


def _row(row: RetainedResource, now: datetime) -> tuple[str, ...]:
    return (
        row.name,
        row.kind or _UNKNOWN,
        _UNKNOWN if row.size_gib is None else _size(row.size_gib),
        _UNKNOWN if row.monthly_usd is None else money(row.monthly_usd),
        _UNKNOWN if row.since is None else age((now - row.since).total_seconds()),
        row.region,
        row.owner or _UNKNOWN,
        f"deleted with {row.made_for}" if row.made_for else "disposable" if row.disposable else "keep",
        _users(row.users),
        row.state,
    )


def _users(users: tuple[str, ...] | None) -> str:
    if users is None:
        return _UNKNOWN
    return ", ".join(users) or "none"


def _sum(rows: Sequence[RetainedResource], width: int) -> list[str]:
    known = [row.monthly_usd for row in rows if row.monthly_usd is not None]
    total = money(sum(known, Decimal(0)))
    unknown = len(rows) - len(known)
    additional = f", plus {plural(unknown, 'storage resource')} of unknown cost" if unknown else ""
    text = f"{total} a month{additional}; capacity only, at list prices"
    return wrap_paragraph(f"{text} (simulated; nothing is charged)" if rows[0].simulated else text, width)


def _size(size_gib: Decimal) -> str:
    if size_gib == size_gib.to_integral_value():
        return f"{int(size_gib)} GiB"
    return f"{size_gib.quantize(Decimal('0.001'), ROUND_HALF_UP)} GiB"


@app.command("create")
def create(  # noqa: PLR0917
    name: Name,
    kind: Kind,
    size: Annotated[
        int,
        typer.Option(
            "--size", metavar="GIB", parser=integer_parser(0, MAX_SIZE_GIB), help="Disk or Lustre only: size in GiB."
        ),
    ] = 0,
    zone: Annotated[
        str, typer.Option("--zone", help="Zone of a disk or Lustre file system. Only clusters in this zone can use it.")
    ] = "",
    deployment: Annotated[
        Deployment | None,
        typer.Option(
            "--deployment",
            help="Lustre only: scratch_2 (cheaper, data not replicated) or persistent_2 (replicated). "
            "Default: scratch_2.",
        ),
    ] = None,
    linked: Annotated[
        str,
        typer.Option(
            "--linked", metavar="S3_URL", help="Lustre only: show the objects of this S3 bucket or prefix as files."
        ),
    ] = "",
    from_snapshot: Annotated[
        str, typer.Option("--from-snapshot", metavar="SNAPSHOT", help="Disk only: snapshot to create the disk from.")
    ] = "",
    disposable: Annotated[
        bool, typer.Option("--disposable", help="Allow `storage delete` to delete the data without --delete-data.")
    ] = False,
    on: On = None,
    yes: Yes = False,
    region: OneRegion = None,
    owner: Owner = None,
    team: Team = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Create storage that outlives clusters.

    Storage costs money until you delete it with `storage delete`. If storage with this name and the same options
    already exists, makes no changes. If creation fails, deletes the incomplete storage immediately.
    """
    context = command_context(json=json, verbose=verbose, target=on, region=region, owner=owner, team=team)
    typed = StorageOptions(name, kind, size, zone, deployment, linked, from_snapshot, disposable)
    storage_request = make_storage_request(typed, context.settings.region, storage_program_config(context.settings))
    price, monthly_usd = request_price(storage_request, kind)
    simulated = is_simulated(context.settings.target)
    storage = context.backend().storage(context.storage_context(), context.settings.team)
    network = network_request(context.settings)
    chosen = storage.choose_subnets(storage_request, network)
    storage_request = replace(storage_request, subnets=chosen.ids if chosen else {})
    question = creation_question(storage_request, price, monthly_usd, simulated=simulated)
    context.prompts.confirm(question, yes=yes, reasons=subnet_lines(chosen, network))
    context.report_storage_on_signal(name)
    with context.screen.working("create"):
        created = storage.create(storage_request)
    if json:
        context.screen.document(created_json(created, monthly_usd))
    else:
        context.screen.wrapped(created_lines(created, price, monthly_usd))


@app.command("list")
def show(on: On = None, region: OneRegion = None, json: Json = False) -> None:
    """List storage, its cost and age, and instances that use it.

    Queries the cloud for every owner's storage, in the configured region and in every region where this machine has
    created storage. Costs cover capacity only.
    """
    context = command_context(json=json, quits=True, target=on, region=region)
    storage = context.backend().storage(context.storage_context(), context.settings.team)
    rows = storage.rows(context.settings.region)
    damaged = context.storage_records.damaged()
    if json:
        context.screen.document({"storage": [row.storage_json() for row in rows], "damaged": sorted(damaged)})
    else:
        context.screen.lines(storage_lines(rows, context.clock.now(), context.screen.width))
        context.screen.wrapped([damaged_line(name, damaged) for name in damaged])


@app.command("delete")
def delete(  # noqa: PLR0917
    name: Name,
    delete_data: Annotated[
        bool,
        typer.Option("--delete-data", help="Delete protected data. Without --yes, asks for the name of the storage."),
    ] = False,
    on: On = None,
    yes: Yes = False,
    region: OneRegion = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Delete storage and its data, and confirm the deletion.

    Fails if instances are using the storage. Requires --delete-data unless the storage was created with --disposable.
    Exits 6 if the deletion could not be confirmed.
    """
    context = command_context(json=json, verbose=verbose, needs_disk=False, target=on, region=region)
    record = next((record for record in context.storage_records.all() if record.name == name), None)
    target = as_target(record.target) if record else context.settings.target
    storage = context.backend(target).storage(context.storage_context(target), context.settings.team)
    present = storage.find_deletable(name, context.settings.region, delete_data=delete_data)
    if present is not None:
        context.prompts.confirm_by_name(deletion_question(present), name, yes=yes, by_name=delete_data)
    context.report_storage_on_signal(name)
    with context.screen.working("delete"):
        deleted = storage.delete(name, context.settings.region, delete_data=delete_data)
    storage.check_recorded(name)
    if json:
        context.screen.document(deleted_json(deleted))
    else:
        context.screen.wrapped(deleted_lines(deleted))
