"""Import commands when they are called, because imports dominate start-up time."""

from collections import UserDict
from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException

from cloudgpu.errors import UsageError
from cloudgpu.text import command, plural

COMMANDS_PACKAGE = "cloudgpu.cli.commands"


class StrictOptions:
    """Rejects a repeated option that takes one value. Typer would silently keep the last value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer keeps its classes private
        """Parse the arguments of the command."""
        try:
            if not ctx.resilient_parsing:
                self._refuse_repeated_options(ctx, args)
            return cast("Any", super()).parse_args(ctx, args)  # type: ignore[no-any-return]
        except TyperException as err:
            if getattr(err, "ctx", self) is None:
                # The parser does not say which command's option lacks a value. The hint names that command's help.
                vars(err)["ctx"] = ctx
            raise

    def _refuse_repeated_options(self, ctx: Any, args: list[str]) -> None:  # noqa: ANN401 - typer keeps its classes private
        _, _, given = cast("Any", self).make_parser(ctx).parse_args(args=list(args))
        for param in given:
            if isinstance(param, TyperOption) and not (param.is_flag or param.multiple or param.count):
                times = given.count(param)
                if times > 1:
                    name = max(param.opts, key=len)
                    message = f"{name} takes one value, but it was given {plural(times, 'time')}"
                    raise UsageError(message, hint=command(*ctx.command_path.split(), "--help"))


class StrictCommand(StrictOptions, TyperCommand):
    """A command that rejects repeated options."""


class LazyCommand(NamedTuple):
    """A command or command group that its parent can list without importing the command's module.

    Attributes:
        module: Name of the module in `cloudgpu.cli.commands`. The module defines a typer application named `app`, or a
            function with the same name as the module. `module:function` names one of several functions.
        help: First line of the command's help.
        hidden: Whether this is a former name, which works but is not listed.
    """

    name: str
    module: str
    help: str
    hidden: bool = False

    def load(self) -> Any:  # noqa: ANN401 - typer keeps its classes private
        """Import the module and return typer's command object."""
        name, _, function = self.module.partition(":")
        module = import_module(f"{COMMANDS_PACKAGE}.{name}")
        parent = typer.Typer(rich_markup_mode=None)
        if hasattr(module, "app") and not function:
            for info in module.app.registered_commands:
                info.cls = StrictCommand
            parent.add_typer(module.app, name=self.name)
        else:
            parent.command(self.name, cls=StrictCommand)(getattr(module, function or name))
        return typer.main.get_group(parent).commands[self.name]


class _Commands(UserDict[str, Any]):
    """Commands by name. The first lookup of a `LazyCommand` replaces it with the loaded command."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - typer keeps its classes private
        command = self.data[name]
        if isinstance(command, LazyCommand):
            command = self.data[name] = command.load()
        return command


class LazyGroup(StrictOptions, TyperGroup):
    """A command group that imports a command's module only when that command is called.

    The group shows its help, suggests names for misspelled commands and completes command names without importing the
    modules of the lazy commands.
    """

    table: ClassVar[Sequence[LazyCommand]] = ()
    """The lazy commands. Help lists them after the commands that are registered with the typer application."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(**settings)
        self._hidden = {row.name for row in self.table if row.hidden}
        stubs = {
            row.name: TyperCommand(row.name, help=row.help, add_help_option=False)
            for row in self.table
            if not row.hidden
        }
        self._listing = TyperGroup(commands={**self.commands, **stubs}, add_help_option=False)
        self.commands = _Commands({**self.commands, **{row.name: row for row in self.table}})

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer keeps its classes private
        """Return the names of the listed commands: registered commands first, then the commands in `table`."""
        return [name for name in self.commands if name not in self._hidden]

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer keeps its classes private
        """Write the names and the one-line help of the commands."""
        self._listing.format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:  # noqa: ANN401 - typer keeps its classes private
        """Return the names of commands and options that start with `incomplete`."""
        names = self._listing.shell_complete(typer.Context(self._listing), incomplete)
        return [*names, *super(TyperGroup, self).shell_complete(ctx, incomplete)]
