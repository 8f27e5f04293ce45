"""Import commands and optional parts of commands when they are first used, because imports dominate start-up time."""

from collections import UserDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Generic, NamedTuple, ParamSpec, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

P = ParamSpec("P")
R = TypeVar("R")

COMMANDS_PACKAGE = "cloudgpu.cli.commands"


@dataclass(frozen=True)
class Deferred(Generic[P, R]):
    """A function whose module is imported on the first call, for a slow part of a command that most calls skip.

    Attributes:
        path: Module and name of the function, such as `cloudgpu.files.read_text`.
    """

    path: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Import the module and call the function."""
        return cast("R", self.load()(*args, **kwargs))

    def load(self) -> Callable[..., Any]:
        """Import the module and return the function."""
        module, _, function = self.path.rpartition(".")
        loaded: Callable[..., Any] = getattr(import_module(module), function)
        return loaded


class LazyCommand(NamedTuple):
    """A command or command group as its parent lists it, before its module is imported.

    Attributes:
        module: Module in `cloudgpu.cli.commands`. Defines a function of the same name, or a typer application `app`.
        help: First line of the command's help.
    """

    name: str
    module: str
    help: str

    def load(self) -> Any:  # noqa: ANN401 - typer keeps its classes private
        """Import the module and return the command as an object of typer."""
        module = import_module(f"{COMMANDS_PACKAGE}.{self.module}")
        parent = typer.Typer(rich_markup_mode=None)
        if hasattr(module, "app"):
            parent.add_typer(module.app, name=self.name)
        else:
            parent.command(self.name)(getattr(module, self.module))
        return typer.main.get_group(parent).commands[self.name]


class _Commands(UserDict[str, Any]):
    """Commands by name. A value of type `LazyCommand` is replaced by the command when it is first looked up."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - typer keeps its classes private
        command = self.data[name]
        if isinstance(command, LazyCommand):
            command = self.data[name] = command.load()
        return command


class LazyGroup(TyperGroup):
    """A command group that imports the modules of its commands when the commands are called.

    Help, suggestions for misspelled names and shell completion of names need only the table.
    """

    table: ClassVar[Sequence[LazyCommand]] = ()
    """The commands, listed after those that are registered with the application."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(**settings)
        stubs = {row.name: TyperCommand(row.name, help=row.help, add_help_option=False) for row in self.table}
        self._listing = TyperGroup(commands={**self.commands, **stubs}, add_help_option=False)
        self.commands = _Commands({**self.commands, **{row.name: row for row in self.table}})

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer keeps its classes private
        """Return the names of the commands in the order of the table."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer keeps its classes private
        """Write the names and the one-line help of the commands."""
        self._listing.format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:  # noqa: ANN401 - typer keeps its classes private
        """Return the names of commands and options that start with `incomplete`."""
        names = self._listing.shell_complete(typer.Context(self._listing), incomplete)
        return [*names, *super(TyperGroup, self).shell_complete(ctx, incomplete)]
