"""Help, JSON document and exit code of every command."""

import inspect
import io
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
import typer

from cloudgpu import errors
from cloudgpu.app.planning.planner import name_of_cluster
from cloudgpu.cli import main as boundary
from cloudgpu.cli import planning as plan_request
from cloudgpu.cli.commands.rehearsal import limit_lines, read_prices, read_rows, read_rules
from cloudgpu.cli.context import command_context
from cloudgpu.cli.main import app, main, split_remote_command
from cloudgpu.cli.terminal.interruption import reporting_partial_result
from cloudgpu.errors import CloudGpuError, LedgerError, QuestionError, UsageError
from cloudgpu.ledger.store import Ledger
from tests.cluster_records import changed

COMMAND = typer.main.get_command(app)
ERRORS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, CloudGpuError)]
HEAVY = ("asyncssh", "boto3", "moto", "paramiko", "pulumi", "rich", "ruamel", "sqlalchemy", "yaml")


def commands(group=COMMAND, path=()):
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize(
    ("path", "command"), list(commands()), ids=lambda value: " ".join(value) if type(value) is tuple else ""
)
def test_every_command_and_option_has_help(path, command, capsys):
    assert main([*path, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: cloudgpu {' '.join(path)}" in shown
    first = command.help.strip().split("\n")[0]
    # A longer line is truncated in the list of commands.
    assert len(first) <= 60, first
    assert first.endswith(".")
    for param in command.params:
        assert param.help, f"{' '.join(path)}: {param.name} has no help"


@pytest.mark.parametrize(("path", "command"), list(commands()), ids=lambda value: value if type(value) is str else "")
def test_help_text_contains_no_function_names(path, command):
    """A rename once changed help text to `list every resource_words`. Setting names are in backticks."""
    for text in (command.help or "", *(param.help or "" for param in command.params)):
        prose = re.sub(r"`[^`]*`|\S*[/.]\S*|known_hosts", "", text)
        assert re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", prose) == [], " ".join(path)


@pytest.mark.parametrize(("path", "command"), list(commands()), ids=lambda value: value if type(value) is str else "")
def test_every_command_that_shows_progress_in_place_has_verbose(path, command):
    if hasattr(command, "commands"):
        return
    source = inspect.getsource(command.callback)
    in_place = re.search(r"\.working\(|\bStages\(|\bRunWatcher\(|\brun_training\(", source) is not None
    if re.search(r"command_context\([^)]*quits=True", source):  # such as `logs`, which shows the output as lines
        in_place = False
    verbose = [(param.opts, param.help) for param in command.params if param.name == "verbose"]
    text = "Print every progress message and all rank output, instead of updating the display in place."
    options = [(["--verbose", "-v"], text)]
    assert verbose == (options if in_place else [])
    # The context gets the option, or the module that carries out the command passes it on.
    assert "verbose=verbose" in source or not in_place or path == ("train",)


def test_command_without_arguments_shows_help(capsys):
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["traim"], "no such command 'traim'. Did you mean 'train'?", "cloudgpu --help"),
        (["plan"], "missing argument 'RECIPE'", "cloudgpu plan --help"),
        (["status", "--nope"], "no such option: --nope", "cloudgpu status --help"),
        (["cost", "--by", "x"], "invalid value for '--by': 'x' is not one of 'user'", "cloudgpu cost --help"),
    ],
)
def test_usage_errors_use_the_common_error_format(argv, message, hint, capsys):
    assert main([*argv, "--json"]) == 2
    told = capsys.readouterr()
    error = json.loads(told.out)["error"]
    assert error["type"] == "UsageError"
    assert error["message"].startswith(message)
    assert error["hint"] == hint
    assert told.err.startswith(f"error: {message}")
    assert main(argv) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("json_mode", [False, True])
def test_every_error_class_exits_with_its_own_code(kind, json_mode, monkeypatch, capsys):
    def fail(**_kwargs):
        raise kind("what happened", hint="what next")

    monkeypatch.setattr(boundary, "app", fail)
    assert main(["status", *(["--json"] if json_mode else [])]) == kind.exit_code
    told = capsys.readouterr()
    assert told.err.startswith("error: what happened\n")
    assert told.err.endswith("hint: what next\n")
    if json_mode:
        assert json.loads(told.out)["error"]["exit_code"] == kind.exit_code
    else:
        assert told.out == ""


@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt, 130), (typer.Abort, 130)])
def test_ctrl_c_exits_130_with_json_error(end, code, monkeypatch, capsys):
    def interrupted(**_kwargs):
        raise end

    monkeypatch.setattr(boundary, "app", interrupted)
    assert main(["train", "x", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "Interrupted"


def test_error_json_includes_the_partial_result(monkeypatch, capsys):
    def fail(**_kwargs):
        err = CloudGpuError("what happened")
        err.partial_result = {"run_id": "r1", "left": ["cluster c"]}
        raise err

    monkeypatch.setattr(boundary, "app", fail)
    assert main(["train", "x", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["error"]["message"] == "what happened"
    assert (told["run_id"], told["left"]) == ("r1", ["cluster c"])


def test_interrupted_command_json_includes_the_partial_result(monkeypatch, capsys):
    def interrupted(**_kwargs):
        with reporting_partial_result(lambda: {"cluster": "c", "left": ["cluster c"]}):
            raise KeyboardInterrupt

    monkeypatch.setattr(boundary, "app", interrupted)
    assert main(["up", "x", "--json"]) == 130
    told = json.loads(capsys.readouterr().out)
    assert told["error"]["type"] == "Interrupted"
    assert told["left"] == ["cluster c"]


def test_unexpected_exception_propagates_and_writes_error_json(monkeypatch, capsys):
    def bug(**_kwargs):
        raise ZeroDivisionError("what a bug")

    monkeypatch.setattr(boundary, "app", bug)
    with pytest.raises(ZeroDivisionError):
        main(["status", "--json"])
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "ZeroDivisionError"


@pytest.mark.parametrize(
    ("argv", "keys"),
    [
        (["status"], {"clusters", "runs"}),
        (["status", "--all"], {"clusters", "runs"}),
        (["cost"], {"by", "since", "until", "rows", "omitted_rows", "real_usd", "simulated_usd"}),
        (
            ["down"],
            {"cluster", "run_id", "known", "instances_ended", "strays_ended", "storage_ended", "storage_kept", "cost"}
            | {"simulated", "left", "stages"},
        ),
        (
            ["rehearsal", "status"],
            {"running", "simulated", "endpoint", "regions", "resident_mib", "clock_ahead_s", "nodes"},
        ),
        (["rehearsal", "stop"], {"was_running"}),
        (["recipe", "check", "quickstart"], {"recipe", "path", "ok", "problems", "warnings", "notes"}),
        (["catalog", "show"], {"target", "simulated", "overlay", "account", "read", "retired", "shipped"}),
        (["catalog", "history"], {"target", "simulated", "overlay", "history"}),
        (["catalog", "revert", "0"], {"target", "simulated", "was", "overlay"}),
        (["quota", "--gpu", "V100", "--offline"], {"target", "simulated", "quotas", "unread"}),
    ],
)
@pytest.mark.usefixtures("home")
def test_json_documents_have_the_documented_keys(argv, keys, capsys):
    assert main([*argv, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == keys


@pytest.mark.usefixtures("home")
def test_list_commands_write_json(capsys):
    assert main(["config", "--json"]) == 0
    assert {tuple(one) for one in json.loads(capsys.readouterr().out)} == {("name", "value", "origin")}
    assert main(["recipe", "list", "--json"]) == 0
    assert "quickstart" in {one["name"] for one in json.loads(capsys.readouterr().out)}
    assert main(["plan", "quickstart", "--offline", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["simulated"] is True


@pytest.mark.usefixtures("home")
def test_confirmation_without_a_terminal_is_rejected(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(QuestionError, match="Go ahead"):
        command_context().prompts.confirm("Go ahead?", yes=False)
    command_context().prompts.confirm("Go ahead?", yes=True)
    assert command_context().prompts.delete_on_interrupt("ask")("cluster s1") is False
    assert command_context().prompts.delete_on_interrupt("end")("cluster s1") is True


@pytest.mark.usefixtures("home")
def test_plan_finds_only_a_matching_running_cluster_for_reuse(cluster, now, capsys):
    assert main(["plan", "quickstart", "--offline"]) == 0
    assert "\na new cluster: 2 ranks" in capsys.readouterr().out
    plan = plan_request.plan_recipe(command_context(), "quickstart", [], offline=True).plan
    records, clock = command_context().records, command_context().clock
    assert name_of_cluster(records, clock, plan) == ""
    up = changed(cluster, name="quickstart", expires_at=datetime.now(UTC) + timedelta(hours=1))
    for record, used in (
        (up, "quickstart"),
        (changed(up, target="aws"), ""),
        (changed(up, nodes=3), ""),
        (changed(up, state="ending"), ""),
        (changed(up, expires_at=up.identity.created_at), ""),
    ):
        command_context().records.save_cluster(record, now)
        assert name_of_cluster(records, clock, plan) == used
        assert name_of_cluster(records, clock, plan, "s1") == "s1"


@pytest.mark.usefixtures("home")
def test_declined_or_interrupted_confirmation_does_nothing(monkeypatch, capsys):
    class Person(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Person())
    monkeypatch.setattr("sys.stderr", Person())
    monkeypatch.setattr("typer.confirm", lambda *_args, **_named: False)
    with pytest.raises(typer.Exit) as end:
        command_context().prompts.confirm("Go ahead?", yes=False)
    assert end.value.exit_code == 1

    def interrupted(*_args, **_named):
        raise typer.Abort

    monkeypatch.setattr("typer.confirm", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command_context().prompts.confirm("Go ahead?", yes=False)
    assert command_context().prompts.delete_on_interrupt("ask")("cluster s1") is False
    assert capsys.readouterr().out.count("nothing was done") == 2


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("default", [False, True])
def test_prompt_after_ctrl_c_has_the_default_of_what_is_running(monkeypatch, default):
    class Person(io.StringIO):
        def isatty(self):
            return True

    asked = []
    monkeypatch.setattr("sys.stdin", Person())
    monkeypatch.setattr("typer.confirm", lambda question, **named: asked.append((question, named["default"])) or True)
    decide = command_context().prompts.delete_on_interrupt("ask", "was created", default=default)
    assert decide("cluster s1")
    assert asked == [("cluster s1 was created. Delete the cluster now?", default)]


@pytest.mark.parametrize(
    ("arguments", "own", "remote"),
    [
        (["ssh", "s1", "--", "ls", "--all"], ["ssh", "s1"], ["ls", "--all"]),
        (["ssh", "--", "ls"], ["ssh"], ["ls"]),
        (["ssh", "s1", "ls"], ["ssh", "s1", "ls"], []),
        (["--debug", "ssh", "--node", "1", "--", "a", "--", "b"], ["--debug", "ssh", "--node", "1"], ["a", "--", "b"]),
        (["plan", "--", "x"], ["plan", "--", "x"], []),
    ],
)
def test_arguments_after_double_dash_go_to_the_remote_command(arguments, own, remote):
    assert split_remote_command(arguments) == (own, remote)


def test_show_completion_prints_bash_script():
    done = subprocess.run(
        [sys.executable, "-m", "cloudgpu", "--show-completion", "bash"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "SHELL": "/bin/bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "complete" in done.stdout


# The option parser imports pydantic for commands that have options.
@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], ("pydantic", *HEAVY)),
        (["--version"], ("pydantic", *HEAVY)),
        (["train", "--help"], HEAVY),
        (["train"], HEAVY),
        (["rehearsal", "--help"], HEAVY),
    ],
)
def test_help_and_usage_errors_import_no_heavy_packages(arguments, heavy):
    program = f"""
import sys
from cloudgpu.cli.main import main
main({arguments!r})
print("LOADED", *sorted(set(sys.modules) & set({heavy!r})))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "LOADED"


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["config"], HEAVY),
        (["status"], HEAVY),
        (["cost"], {*HEAVY} - {"sqlalchemy"}),
        (["logs", "no-such-run"], {*HEAVY} - {"paramiko", "yaml"}),
        (["ssh", "no-such-cluster"], {*HEAVY} - {"paramiko", "yaml"}),
    ],
    ids=lambda one: one[0] if isinstance(one, list) else "",
)
def test_record_reading_commands_import_no_cloud_client(home, arguments, heavy):
    program = f"""
import sys
from cloudgpu.cli.main import main
from tests.cluster_records import changed
main({arguments!r})
print("LOADED", *sorted(set(sys.modules) & {set(heavy)!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "LOADED"


def test_rehearsal_limit_rows_are_parsed_and_shown():
    assert read_rows(["us-east-1c/*/spot=2", "*/*/*=0"]) == {"us-east-1c/*/spot": 2, "*/*/*": 0}
    assert limit_lines("quota", {}) == ["simulated quota: unlimited"]
    assert limit_lines("quota", {"a/b/c": 1}) == ["simulated quota:", "  a/b/c = 1"]


@pytest.mark.parametrize("row", ["", "a/b=1", "a/b/c", "a/b/c=", "a/b/c=-1", "a/b/c=x", "a/b/c=²", "=1"])
def test_invalid_rehearsal_limit_is_rejected(row):
    with pytest.raises(UsageError):
        read_rows([row])


def test_rehearsal_price_rows_are_parsed():
    rows = ["us-east-1/p3dn.24xlarge/on-demand=29.5", "*/*/spot=0.05", "*/*/*=7"]
    assert read_prices(rows) == {"us-east-1/p3dn.24xlarge/on-demand": "29.5", "*/*/spot": "0.05", "*/*/*": "7"}


@pytest.mark.parametrize("usd", ["", "0", "0.00", "-1", "1e3", "NaN", "x", "²", "1.", ".5", "1,5"])
def test_invalid_rehearsal_price_is_rejected(usd):
    with pytest.raises(UsageError, match="REGION/TYPE/MARKET=USD"):
        read_prices([f"us-east-1/p3dn.24xlarge/on-demand={usd}"])
    with pytest.raises(UsageError):
        read_prices(["us-east-1/p3dn.24xlarge/reserved=1"])


@pytest.mark.parametrize("text", ["", "{}", "not json", "\xff"])
def test_invalid_fault_script_is_rejected(text, tmp_path):
    path = tmp_path / "faults.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError):
        read_rules(str(path))
    with pytest.raises(UsageError):
        read_rules(str(tmp_path / "none.json"))


def test_valid_fault_script_is_parsed(tmp_path):
    path = tmp_path / "faults.json"
    path.write_text('[{"action": "CreateFleet"}]')
    assert read_rules(str(path)) == [{"action": "CreateFleet"}]
    assert read_rules("") == []


@pytest.mark.parametrize("code", [0, 13])
def test_command_closes_all_ledger_connections(home, code, monkeypatch):
    engines = []
    report = Ledger.query

    def watched(ledger, *args, **named):
        engines.append(ledger.engine)
        if code:
            raise LedgerError("it is damaged")
        return report(ledger, *args, **named)

    monkeypatch.setattr(Ledger, "query", watched)
    assert main(["cost"]) == code
    (engine,) = engines
    assert engine.pool.checkedin() == engine.pool.checkedout() == 0
