"""The entry point: registers the commands, and is the one place where errors become exit codes."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cloudgpu.cli import attach, cancel, config, cost, down, logs, plan, recipe, rehearsal, ssh, status, train, up
from cloudgpu.cli.screen import Screen
from cloudgpu.errors import CloudGpuError
from cloudgpu.version import __version__

INTERRUPTED = 130

app = typer.Typer(
    name="cloudgpu",
    help="GPU clusters that cannot leak: plan, up, train, down, from one recipe file.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cloudgpu {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[  # noqa: ARG001 - its callback ends the command
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Write a log with AWS request ids (settings: debug).")] = False,
) -> None:
    """Options before the command."""
    if debug:
        from cloudgpu.cli.wiring import set_debug

        set_debug()


app.command("plan")(plan.plan)
app.command("up")(up.up)
app.command("train")(train.train)
app.command("attach")(attach.attach)
app.command("status")(status.status)
app.command("logs")(logs.logs)
app.command("cancel")(cancel.cancel)
app.command("down")(down.down)
app.command("cost")(cost.cost)
app.command("ssh")(ssh.ssh)
app.command("config")(config.config)
app.add_typer(recipe.app, name="recipe")
app.add_typer(rehearsal.app, name="rehearsal")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a bug keeps its traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    screen = Screen(json_mode="--json" in arguments)
    try:
        app(args=arguments, prog_name="cloudgpu")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except CloudGpuError as err:
        screen.error(err)
        return err.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    return 0


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
