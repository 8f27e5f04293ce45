"""The entry point: register the commands and turn errors into exit codes."""

import io
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from cloudgpu.cli.commands import (
    attach,
    cancel,
    catalog,
    config,
    cost,
    doctor,
    down,
    execute,
    extend,
    gpus,
    hosts,
    image,
    images,
    logs,
    matrix,
    offers,
    plan,
    quota,
    recipe,
    rehearsal,
    ssh,
    ssh_config,
    status,
    storage,
    sweep,
    train,
    tunnel,
    up,
)
from cloudgpu.cli.commands.options import expand_retry_option
from cloudgpu.cli.context.resources import open_resources
from cloudgpu.cli.render.error import failure_json
from cloudgpu.cli.terminal.interruption import Interrupted
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.cli.terminal.signals import INTERRUPTED, interruptions
from cloudgpu.errors import CloudGpuError, UsageError
from cloudgpu.text import printable
from cloudgpu.version import __version__

FIRST_COMMANDS = ("gpus", "images", "recipe", "plan")
"""Commands to list first, because new users need them first. By default, typer lists command groups last."""
FIRST_STEPS = """\b
First steps, without an AWS account and at no cost:
  cloudgpu train quickstart --on rehearsal         a full run on this machine
Your own run:
  cloudgpu gpus --count 8 --min-memory 32GB        compare instance types
  cloudgpu recipe new my-run --gpu V100-32GB:8     create a recipe
  cloudgpu plan my-run                             preview actions and cost
  cloudgpu train my-run                            run it and delete the cluster
"""


class OrderedGroup(TyperGroup):
    """A command group that lists commands in the order in which they are typically used."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer keeps its classes private
        """Return the commands in registration order, with the most important ones first."""
        names = super().list_commands(ctx)
        return sorted(
            names, key=lambda name: FIRST_COMMANDS.index(name) if name in FIRST_COMMANDS else len(FIRST_COMMANDS)
        )


app = typer.Typer(
    name="cloudgpu",
    cls=OrderedGroup,
    help="Run multi-node GPU training on AWS from one recipe file: plan and price the run, create the cluster, train, "
    "download the results, and delete every resource that was created.",
    epilog=FIRST_STEPS,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(requested: bool) -> None:
    if requested:
        Screen().line(f"cloudgpu {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 - its callback ends the command
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Log AWS request IDs and show all output. Default: the `debug` setting."),
    ] = False,
) -> None:
    """Parse the options that precede the command."""
    if context.invoked_subcommand is None:
        Screen().lines(context.get_help().splitlines())
        raise typer.Exit(UsageError.exit_code)
    if debug:
        from cloudgpu.cli.context.wiring import set_debug

        set_debug()


app.add_typer(gpus.app, name="gpus")
app.command("images")(images.images)
app.command("plan")(plan.plan)
app.command("offers")(offers.offers)
app.command("up")(up.up)
app.command("train")(train.train)
app.command("attach")(attach.attach)
app.command("status")(status.status)
app.command("logs")(logs.logs)
app.command("cancel")(cancel.cancel)
app.command("extend")(extend.extend)
app.command("down")(down.down)
app.command("sweep")(sweep.sweep)
app.command("cost")(cost.cost)
app.command("ssh")(ssh.ssh)
app.command("ssh-config")(ssh_config.ssh_config)
app.command("exec")(execute.execute)
app.command("tunnel")(tunnel.tunnel)
app.command("config")(config.config)
app.command("doctor")(doctor.doctor)
app.command("quota")(quota.quota)
app.add_typer(catalog.app, name="catalog")
app.add_typer(storage.app, name="storage")
app.add_typer(hosts.app, name="hosts")
app.add_typer(image.app, name="image")
app.add_typer(recipe.app, name="recipe")
app.add_typer(matrix.app, name="matrix")
app.add_typer(rehearsal.app, name="rehearsal")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Unexpected exceptions propagate with their traceback."""
    own, remote = split_remote_command(list(sys.argv[1:] if argv is None else argv))
    own = expand_retry_option(own)
    screen = Screen(json_mode="--json" in own)
    documents = Screen.documents
    with interruptions.handle_signals(screen):
        try:
            with open_resources:
                code = interruptions.exit_code(_run(own, remote, screen))
        except Exception as bug:
            if screen.json_mode and Screen.documents == documents:
                screen.document(failure_json(type(bug).__name__, str(bug), "", 1, []))
            raise
        if code and screen.json_mode and Screen.documents == documents:
            # After a signal or a declined prompt, the reader of stdout still expects a JSON document.
            ended = interruptions.first is not None or code == INTERRUPTED
            what = ("Interrupted", "interrupted") if ended else ("Declined", "nothing was done")
            screen.document(failure_json(*what, "", code, []))
        screen.lines(interruptions.lines())
    return code


def _run(own: list[str], remote: list[str], screen: Screen) -> int:
    try:
        _refuse_undecodable(own)
        return int(app(args=own, prog_name="cloudgpu", standalone_mode=False, obj=remote) or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except TyperException as err:
        return _usage(err, screen)
    except CloudGpuError as err:
        screen.error(err)
        return err.exit_code
    except (Interrupted, KeyboardInterrupt, typer.Abort) as end:
        return _interrupted(end, screen)


def _refuse_undecodable(arguments: list[str]) -> None:
    """Reject arguments that are not UTF-8, because tags, records and the ledger cannot hold them.

    Raises:
        UsageError: An argument is not UTF-8.
    """
    for position, text in enumerate(arguments, 1):
        if any("\ud800" <= char <= "\udfff" for char in text):
            message = f"argument {position} is not UTF-8 text: {printable(text)}"
            raise UsageError(message, hint="rename the file, or use a UTF-8 locale")


def _interrupted(end: BaseException, screen: Screen) -> int:
    partial_result = end.partial_result if isinstance(end, Interrupted) else {}
    if screen.json_mode:
        code = interruptions.exit_code(INTERRUPTED)
        screen.document({**failure_json("Interrupted", "interrupted", "", code, []), **partial_result})
    if not partial_result:
        screen.trouble("interrupted")
    return INTERRUPTED


def split_remote_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments of `ssh` and `exec` at `--` into arguments of cloudgpu and the command for the nodes."""
    verb = next((argument for argument in arguments if not argument.startswith("-")), "")
    if verb not in ("ssh", "exec") or "--" not in arguments:
        return arguments, []
    index = arguments.index("--")
    return arguments[:index], arguments[index + 1 :]


def _usage(err: TyperException, screen: Screen) -> int:
    """Report an invalid option or argument in the format of cloudgpu's own errors."""
    path = getattr(getattr(err, "ctx", None), "command_path", "cloudgpu")
    message = err.format_message().replace("Value error, ", "").rstrip(".")
    screen.error(UsageError(f"{message[:1].lower()}{message[1:]}", hint=f"{path} --help"))
    return UsageError.exit_code


def entry() -> None:
    """Run cloudgpu as a console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the locale cannot encode must not abort a command.
            stream.reconfigure(errors="replace")
    sys.exit(main())


if __name__ == "__main__":
    entry()
