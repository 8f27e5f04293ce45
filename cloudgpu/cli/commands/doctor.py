"""`cloudgpu doctor`: check that a run has everything it needs."""

from typing import Annotated, Literal

import typer

from cloudgpu.aws.iam.grants import policy as document
from cloudgpu.aws.iam.permissions import GRANTS
from cloudgpu.aws.iam.storage_permissions import STORAGE_GRANTS
from cloudgpu.cli.commands.options import Json, OneRegion
from cloudgpu.cli.context.wiring import wire
from cloudgpu.cli.render.doctor import diagnostic_lines
from cloudgpu.errors import UnfitError


def doctor(
    on: Annotated[
        Literal["aws", "rehearsal"], typer.Option("--on", help="Target whose permissions and quotas are checked.")
    ] = "aws",
    region: OneRegion = None,
    policy: Annotated[
        bool, typer.Option("--policy", help="Print the required IAM policy; with --storage, the one for storage.")
    ] = False,
    storage: Annotated[bool, typer.Option("--storage", help="Also check what `cloudgpu storage` needs.")] = False,
    json: Json = False,
) -> None:
    """Check credentials, permissions, quotas and this machine.

    Creates, changes and deletes nothing: uses EC2 dry runs and, if permitted, the IAM policy simulator. A check that
    cannot run, for example without credentials, is shown as `unknown`. Exits 15 if a check fails.
    """
    wiring = wire(json=json or policy, target=on, region=region)
    if policy:
        wiring.screen.document(document(STORAGE_GRANTS if storage else GRANTS))
        return
    report = wiring.diagnose(storage=storage)
    if json:
        wiring.screen.document(report.as_json())
    else:
        wiring.screen.lines(diagnostic_lines(report))
    if report.failed:
        raise typer.Exit(UnfitError.exit_code)
