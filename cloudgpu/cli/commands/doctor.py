"""`cloudgpu doctor`: check that this machine and the account are ready for a run."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import typer

from cloudgpu.app.diagnostics import Diagnosis, DiagnosticReport, machine_checks, run_checks
from cloudgpu.aws.iam_grants import BOUNDARY_GRANTS, ROLE_GRANTS, SPOT, SPOT_GRANTS, STORAGE_ROLES, grants_for_boundary
from cloudgpu.aws.iam_grants import policy as document
from cloudgpu.aws.permissions import GRANTS, SESSION_GRANTS, STORAGE_GRANTS
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options import Json, OneRegion
from cloudgpu.cli.terminal.wrapping import wrap_paragraph
from cloudgpu.cloud import Grant
from cloudgpu.errors import UnfitError
from cloudgpu.paths import Home
from cloudgpu.plan.network_access import network_request

_STATE_WIDTH = len("unknown")
_WIDTH = 120
POLICIES: Mapping[str, tuple[Grant, ...]] = {
    "clusters": GRANTS,
    "roles": ROLE_GRANTS,
    "boundary": BOUNDARY_GRANTS,
    "sessions": SESSION_GRANTS,
    "spot": SPOT_GRANTS,
    "storage": STORAGE_GRANTS,
}
"""`--part` -> permissions of the policy; each fits into one managed policy."""


def diagnostic_lines(report: DiagnosticReport, width: int | None = None) -> list[str]:
    """Return one line per check, followed by its fix, and the number of checks in each state."""
    name_width = max((len(check.name) for check in report.checks), default=0)
    columns = min(width or _WIDTH, _WIDTH)
    lines = [line for check in report.checks for line in _lines(check, name_width, columns)]
    counts = [
        f"{report.count(state)} {state}" for state in ("failed", "unknown", "warning", "ok") if report.count(state)
    ]
    return [*lines, "", ", ".join(counts)]


def _lines(check: Diagnosis, name_width: int, columns: int) -> Iterator[str]:
    begin = f"{check.state:<{_STATE_WIDTH}}  {check.name:<{name_width}}  "
    inset = " " * len(begin)
    yield from wrap_paragraph(begin + check.detail, columns, inset)
    if check.fix and check.state != "ok":
        yield from wrap_paragraph(f"{inset}fix: {check.fix}", columns, inset)


def doctor(
    on: Annotated[
        Literal["aws", "rehearsal"], typer.Option("--on", help="Target whose permissions and quotas to check.")
    ] = "aws",
    region: OneRegion = None,
    policy: Annotated[
        bool,
        typer.Option("--policy", help="Print an IAM policy that cloudgpu needs: one `--part`, by default `clusters`."),
    ] = False,
    part: Annotated[
        Literal["clusters", "roles", "boundary", "sessions", "spot", "storage"] | None,
        typer.Option("--part", help="Policy to print. `boundary` is for the roles, the others are for your identity."),
    ] = None,
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
    if policy or part is not None:
        context.screen.document(document(POLICIES[part or ("storage" if storage else "clusters")]))
        if part is None and not storage:
            context.screen.hint("without a role of your own, attach this too: `cloudgpu doctor --policy --part roles`")
        return
    settings = context.settings
    role_grants = grants_for_boundary(ROLE_GRANTS, settings.permissions_boundary)
    extra_grants = (*(STORAGE_GRANTS if storage else ()), *(SESSION_GRANTS if settings.reach == "ssm" else ()))
    report = run_checks(
        target=settings.target,
        region=settings.region,
        account=lambda: context.backend().account_queries(),
        grants=(*GRANTS, *role_grants, *extra_grants),
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
