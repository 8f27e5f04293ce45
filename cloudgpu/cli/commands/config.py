"""`cloudgpu config`: show every setting, its value and its source."""

from cloudgpu.cli.commands.options import Json
from cloudgpu.cli.context.wiring import wire
from cloudgpu.cli.terminal.table import align_columns


def config(json: Json = False) -> None:
    """Show the settings and the source of each.

    Values come from options, environment variables and settings files. Passwords are masked.
    """
    wiring = wire(json=json)
    origins = wiring.settings.origins
    if json:
        wiring.screen.document(
            [{"name": setting.name, "value": setting.shown, "origin": setting.origin} for setting in origins]
        )
        return
    rows = [
        ("setting", "value", "from"),
        *((setting.name, setting.shown or "-", setting.origin) for setting in origins),
    ]
    wiring.screen.lines(align_columns(rows))
