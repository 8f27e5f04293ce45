"""What the command line relies on in typer: its group class and its exceptions, which came with click in 0.26."""

import pytest
import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command


class Sorted(TyperGroup):
    def list_commands(self, ctx):
        return sorted(super().list_commands(ctx))

    def resolve_command(self, ctx, args):
        if args[0] == "three":
            raise KeyError(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Sorted, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    assert context.invoked_subcommand


@app.command("two")
def _two(context: typer.Context, count: int = typer.Option(0)) -> int:
    return count + len(context.obj)


@app.command("one")
def _one() -> None:
    raise typer.Exit(7)


def run(*args: str) -> object:
    return app(args=list(args), prog_name="p", standalone_mode=False, obj=["x"])


def test_without_standalone_mode_results_and_exit_codes_come_back() -> None:
    assert (run("two", "--count", "3"), run("one")) == (4, 7)


@pytest.mark.parametrize("wrong", [["two", "--none"], ["two", "--count", "x"], ["nothing"], ["two", "more"]])
def test_wrong_usage_is_one_class_with_a_message_and_a_path(wrong: list[str]) -> None:
    with pytest.raises(TyperException) as caught:
        run(*wrong)
    assert caught.value.format_message()
    assert caught.value.ctx.command_path.startswith("p")


def test_the_group_asks_our_methods() -> None:
    with pytest.raises(KeyError):
        run("three")
    command = get_command(app)
    assert command.list_commands(typer.Context(command)) == ["one", "two"]
    assert "three" not in command.commands


def test_options_of_a_command_can_be_listed() -> None:
    """`docs/reference/cli.md` is rendered from them."""
    command = get_command(app).commands["two"]
    (option,) = [one for one in command.params if "--count" in one.opts]
    left, right = option.get_help_record(typer.Context(command))
    assert left.startswith("--count")
    assert isinstance(right, str)
