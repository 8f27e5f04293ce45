"""`cloudgpu config`: show every setting, its value and its source."""

from cloudgpu.cli.context import command_context
from cloudgpu.cli.options import Json
from cloudgpu.cli.terminal.table import Column, Table

_COLUMNS = (Column("setting"), Column("value", priority=1, narrow="wrap", whole=True, label=""), Column("from"))


def config(json: Json = False) -> None:
    """Show the settings and the source of each.

    Values come from options, environment variables, settings files and defaults. Passwords are masked.
    """
    context = command_context(json=json)
    origins = context.settings.origins
    if json:
        context.screen.document(
            [{"name": setting.name, "value": setting.shown, "origin": setting.origin} for setting in origins]
        )
        return
    rows = [(setting.name, setting.shown or "-", setting.origin) for setting in origins]
    context.screen.lines(Table(_COLUMNS, rows).lines(context.screen.width))
