"""`cloudgpu doctor`: is everything there that a run will need?"""

from typing import Annotated, Literal

import typer

from cloudgpu.cli.commands.options import Json, Region


def doctor(
    on: Annotated[
        Literal["aws", "rehearsal"], typer.Option("--on", help="Whose permissions and quotas are looked at.")
    ] = "aws",
    region: Region = None,
    policy: Annotated[
        bool, typer.Option("--policy", help="Print the IAM policy that is needed (with --storage: for storage alone).")
    ] = False,
    storage: Annotated[bool, typer.Option("--storage", help="What `cloudgpu storage` needs, too.")] = False,
    json: Json = False,
) -> None:
    """Check credentials, permissions, quotas and this machine.

    Makes, changes and ends nothing: EC2 is asked by dry runs, IAM by its own simulation where that is allowed. What
    could not be asked is `unknown`, with no account as well. Exits 15 when a check failed.
    """
    from cloudgpu.cli.context.wiring import wire

    wiring = wire(json=json or policy, target=on, region=region)
    if policy:
        from cloudgpu.aws.iam.grants import policy as document
        from cloudgpu.aws.iam.permissions import GRANTS
        from cloudgpu.aws.iam.storage_permissions import STORAGE_GRANTS

        wiring.screen.document(document(STORAGE_GRANTS if storage else GRANTS))
        return
    from cloudgpu.cli.render.doctor import checkup_lines
    from cloudgpu.errors import UnfitError

    found = wiring.checkup(storage=storage)
    if json:
        wiring.screen.document(found.as_json())
    else:
        wiring.screen.lines(checkup_lines(found))
    if found.failed:
        raise typer.Exit(UnfitError.exit_code)
