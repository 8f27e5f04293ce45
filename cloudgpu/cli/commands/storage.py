"""`cloudgpu storage`: manage storage that outlives clusters."""

from dataclasses import replace
from typing import Annotated

import typer

from cloudgpu.app.storage.request import StorageOptions, make_storage_request, request_price
from cloudgpu.backends.aws.existing_resources import storage_program_config
from cloudgpu.bounds import MAX_SIZE_GIB
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json, On, OneRegion, Owner, Team, Verbose, Yes, integer_parser
from cloudgpu.cli.render.status import damaged_line
from cloudgpu.cli.render.storage import (
    created_json,
    created_lines,
    creation_question,
    deleted_json,
    deleted_lines,
    deletion_question,
    storage_lines,
    subnet_lines,
)
from cloudgpu.cli.terminal.still_running import report_storage_on_signal
from cloudgpu.plan.network_access import network_request
from cloudgpu.recipe.storage_kinds import Deployment, StorageKind
from cloudgpu.targets import as_target, is_simulated

app = typer.Typer(help="Manage storage that outlives clusters.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Storage name: lowercase letters, digits and dashes.")]
Kind = Annotated[
    StorageKind,
    typer.Option(
        "--kind",
        help="efs: shared file system. lustre: parallel file system in one zone. ebs: disk in one zone. s3: bucket.",
    ),
]


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
    report_storage_on_signal(context.storage_records, name)
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
        context.screen.document({"storage": [row.as_json() for row in rows], "damaged": sorted(damaged)})
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
    report_storage_on_signal(context.storage_records, name)
    with context.screen.working("delete"):
        deleted = storage.delete(name, context.settings.region, delete_data=delete_data)
    storage.check_recorded(name)
    if json:
        context.screen.document(deleted_json(deleted))
    else:
        context.screen.wrapped(deleted_lines(deleted))
