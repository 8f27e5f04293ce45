"""`cloudgpu doctor`: check that this machine and the account are ready for a run."""

from typing import Annotated, Literal

import typer

from cloudgpu.app.diagnostics.doctor import run_checks
from cloudgpu.app.diagnostics.local_checks import machine_checks
from cloudgpu.app.planning.planner import network_request
from cloudgpu.aws.iam.grants import policy as document
from cloudgpu.aws.iam.permissions import GRANTS
from cloudgpu.aws.iam.service_roles import SPOT, STORAGE_ROLES
from cloudgpu.aws.iam.session_permissions import SESSION_GRANTS
from cloudgpu.aws.iam.storage_permissions import STORAGE_GRANTS
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json, OneRegion
from cloudgpu.cli.render.doctor import diagnostic_lines
from cloudgpu.errors import UnfitError
from cloudgpu.paths import Home


def doctor(
    on: Annotated[
        Literal["aws", "rehearsal"], typer.Option("--on", help="Target whose permissions and quotas to check.")
    ] = "aws",
    region: OneRegion = None,
    policy: Annotated[
        bool, typer.Option("--policy", help="Print the required IAM policy; with --storage, the policy for storage.")
    ] = False,
    storage: Annotated[
        bool, typer.Option("--storage", help="Also check the permissions for `cloudgpu storage`.")
    ] = False,
    json: Json = False,
) -> None:
    """Check credentials, permissions, quotas and this machine.

    Also lists the subnets of the VPC that new clusters use. Read-only: uses EC2 dry runs and, if permitted, the IAM
    policy simulator. A check that cannot run, for example without credentials, is shown as `unknown`. Exits 15 if a
    check fails.
    """
    context = command_context(json=json or policy, target=on, region=region)
    if policy:
        context.screen.document(document(STORAGE_GRANTS if storage else GRANTS))
        return
    settings = context.settings
    extra_grants = (*(STORAGE_GRANTS if storage else ()), *(SESSION_GRANTS if settings.reach == "ssm" else ()))
    report = run_checks(
        target=settings.target,
        region=settings.region,
        account=lambda: context.backend().account_queries(),
        grants=(*GRANTS, *extra_grants),
        service_roles=(SPOT, *(STORAGE_ROLES if storage else ())),
        machine=machine_checks(settings, Home(settings.home)),
        network=network_request(settings),
    )
    if json:
        context.screen.document(report.as_json())
    else:
        context.screen.lines(diagnostic_lines(report, context.screen.width))
    if report.failed:
        raise typer.Exit(UnfitError.exit_code)
