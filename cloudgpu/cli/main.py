"""The entry point: the table of commands, and the conversion of errors into exit codes."""

import gc
import io
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from cloudgpu.cli.command_end import open_resources, take_failure_notes
from cloudgpu.cli.lazy import LazyCommand, LazyGroup
from cloudgpu.cli.options import expand_retry_option
from cloudgpu.cli.render.error import failure_json
from cloudgpu.cli.terminal.interruption import INTERRUPTED, Interrupted, interruptions
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import CloudGpuError, UsageError
from cloudgpu.node.agent.proc import forbid_core_dumps
from cloudgpu.text import command, printable
from cloudgpu.version import __version__

COMMANDS = (
    LazyCommand("gpus", "hardware", "Compare GPUs by memory, speed and price."),
    LazyCommand("containers", "hardware:containers", "List framework containers and the GPUs they run on."),
    LazyCommand("recipe", "recipe", "Create, check, show and list recipes."),
    LazyCommand("plan", "plan:plan", "Show what a recipe would do and cost."),
    LazyCommand("offers", "plan:offers", "List the instance offers for a recipe in failover order."),
    LazyCommand("up", "up", "Create a cluster from a recipe and keep it running."),
    LazyCommand("train", "train", "Run a recipe: create a cluster, train, then delete it."),
    LazyCommand("attach", "runs:attach", "Reattach to a run, follow it to the end and clean up."),
    LazyCommand("status", "status", "List running clusters and their runs."),
    LazyCommand("logs", "runs:logs", "Show the output of a run's ranks."),
    LazyCommand("cancel", "runs:cancel", "Cancel a run and keep its cluster running."),
    LazyCommand("extend", "clusters:extend", "Extend a cluster's expiry."),
    LazyCommand("down", "clusters:down", "Delete clusters and confirm that nothing is left."),
    LazyCommand("sweep", "sweep", "Find tagged clusters in the account and delete leftovers."),
    LazyCommand("cost", "cost", "Show what was spent, when, by whom and on what."),
    LazyCommand("ssh", "nodes:ssh", "Log in to a node, or run a command on it."),
    LazyCommand("ssh-config", "nodes:ssh_config", "Add a cluster's nodes to ~/.ssh for ssh, scp and editors."),
    LazyCommand("exec", "nodes:execute", "Run a command on every node and group the output."),
    LazyCommand("tunnel", "nodes:tunnel", "Forward local ports to a node until Ctrl-C."),
    LazyCommand("config", "config", "Show the settings and the source of each."),
    LazyCommand("doctor", "doctor", "Check credentials, permissions, quotas and this machine."),
    LazyCommand("quota", "quota", "Show how many nodes the account's quotas allow."),
    LazyCommand("catalog", "catalog", "Show and refresh instance types and prices."),
    LazyCommand("storage", "storage", "Manage storage that outlives clusters."),
    LazyCommand("hosts", "hosts", "Manage self-managed hosts, used with --on ssh."),
    LazyCommand("image", "image", "Manage your own machine images for nodes."),
    LazyCommand("matrix", "matrix", "Show the results of run matrices."),
    LazyCommand("rehearsal", "rehearsal", "Manage the simulated AWS on this machine."),
    LazyCommand("images", "hardware:containers", "List framework containers and the GPUs they run on.", hidden=True),
)
"""The commands in the order in which the help lists them, which is the typical order of use."""
FIRST_STEPS = """\b
First steps, without an AWS account and at no cost:
  cloudgpu train quickstart --on rehearsal         a full run on this machine
Your own run:
  cloudgpu gpus --count 8 --min-memory 32GB        compare instance types
  cloudgpu recipe new my-run --gpu V100-32GB:8     create a recipe
  cloudgpu plan my-run                             preview actions and cost
  cloudgpu train my-run                            run it and delete the cluster
"""


class Commands(LazyGroup):
    """The commands of cloudgpu."""

    table = COMMANDS


app = typer.Typer(
    name="cloudgpu",
    cls=Commands,
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
    version: Annotated[  # noqa: ARG001 - the option's callback exits
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Log AWS request IDs and show all installer output. Default: the `debug` setting."
        ),
    ] = False,
) -> None:
    """Parse the options that precede the command."""
    if context.invoked_subcommand is None:
        Screen().lines(context.get_help().splitlines())
        raise typer.Exit(UsageError.exit_code)
    if debug:
        from cloudgpu.cli.context import set_debug  # noqa: PLC0415 - imports the settings

        set_debug()


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
            for note in take_failure_notes(code):
                screen.remark(f"note: {note}")
        except KeyboardInterrupt as end:  # a signal while the resources of a finished command were being closed
            code = interruptions.exit_code(_interrupted(end, screen))
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
    """Reject arguments that are not UTF-8, because tags, records and the ledger cannot store them."""
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
    """Split the arguments of `ssh` and `exec` at `--` into cloudgpu's own arguments and the command for the nodes."""
    verb = next((argument for argument in arguments if not argument.startswith("-")), "")
    if verb not in ("ssh", "exec") or "--" not in arguments:
        return arguments, []
    index = arguments.index("--")
    return arguments[:index], arguments[index + 1 :]


def _usage(err: TyperException, screen: Screen) -> int:
    """Report an invalid option or argument in the format of cloudgpu's own errors."""
    words = str(getattr(getattr(err, "ctx", None), "command_path", "cloudgpu")).split()
    message = err.format_message().replace("Value error, ", "").rstrip(".")
    screen.error(UsageError(f"{message[:1].lower()}{message[1:]}", hint=command(*words, "--help")))
    return UsageError.exit_code


def entry() -> None:
    """Run cloudgpu as a console script."""
    forbid_core_dumps()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the locale cannot encode must not abort a command.
            stream.reconfigure(errors="replace")
    code = main()
    # Before it exits, the interpreter collects garbage among everything imported, a fifth of a short command's time.
    gc.freeze()
    # If Ctrl-C interrupted code that `exec` compiled, as when a dataclass is imported, `python -m` ends by SIGINT
    # although the KeyboardInterrupt was handled. The next `exec` resets that.
    exec("")  # noqa: S102 - a constant
    sys.exit(code)


if __name__ == "__main__":
    entry()
