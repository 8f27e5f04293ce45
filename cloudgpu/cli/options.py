"""Options that several commands share, defined once."""

from typing import Annotated, Literal

import typer

On = Annotated[
    Literal["aws", "rehearsal"] | None,
    typer.Option("--on", help="Where: the real AWS, or the rehearsal cloud on this machine (settings: target)."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, progress on standard error.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter, or a field by its dotted name; may be repeated."),
]
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A folder with recipe.yaml, a file, or a bare name.")]
Region = Annotated[str | None, typer.Option("--region", help="Region of recipes that name none.")]
Owner = Annotated[str | None, typer.Option("--owner", help="Who pays (settings: owner).")]
Team = Annotated[str | None, typer.Option("--team", help="The team it is for (settings: team).")]
SshCidr = Annotated[str | None, typer.Option("--ssh-cidr", help="Addresses that may reach port 22.")]
OnInterrupt = Annotated[
    Literal["ask", "leave", "end"],
    typer.Option("--on-interrupt", help="After Ctrl-C: ask on a terminal (else leave), leave it running, or end it."),
]
RunName = Annotated[str, typer.Argument(metavar="[RUN]", help="A run id; the latest run when left out.")]
