"""Progress events as printed lines."""

import io

import pytest

from cloudgpu.cli.command_end import take_failure_notes
from cloudgpu.cli.terminal.output import Output
from cloudgpu.cli.terminal.progress_display import ProgressDisplay
from cloudgpu.cli.terminal.progress_lines import (
    STAGES,
    ProgressPrinter,
    installer_line,
    resource_words,
    shorten_aws_error,
)
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.engine.base import Event
from cloudgpu.run.progress import LogFolder, MetricValue, Note, RankLine, RankOutput, ServiceAddress, StageChange

CAPACITY = (
    "launching 2 instances: We currently do not have sufficient g4dn.xlarge capacity in the Availability Zone you "
    "requested (us-east-1a). Our system will be working on provisioning additional capacity "
    "(InsufficientInstanceCapacity)"
)


def told(*events, verbose=False):
    stream, narrator = io.StringIO(), ProgressPrinter(verbose=verbose)
    for one in events:
        Output(stream, colour=False).lines(narrator.lines(one))
    return stream.getvalue().removesuffix("\n")


def event(kind, operation, type_token, detail="", seconds=0.3):
    return Event(kind, operation, "urn", type_token, "s1", detail, seconds)


def test_progress_of_a_provisioning_is_printed_line_by_line():
    assert (
        told(
            StageChange("provision"),
            Note("trying us-east-1a g4dn.xlarge on-demand: 2 x $0.526/h"),
            event("start", "create", "aws:ec2/securityGroup:SecurityGroup"),
            event("done", "create", "aws:ec2/securityGroup:SecurityGroup", "sg-1"),
            event("done", "same", "aws:iam/role:Role", "r"),
            event("failed", "create", "aws:ec2/fleet:Fleet", CAPACITY),
            Note("us-east-1a g4dn.xlarge on-demand: no capacity (InsufficientInstanceCapacity)"),
            event("waiting", "delete", "aws:ec2/fleet:Fleet", "after 12 s"),
            event("waiting", "read", "pulumi:log", "two\x07"),
            event("done", "delete", "aws:iam/role:Role", ""),
            Note("is up", 1),
            RankLine(2, "epoch=1 \x1b[31mred"),
            RankOutput(0, ("first", "second")),
            RankOutput(0, ("the only rank needs no number",), single_rank=True),
            MetricValue("accuracy", 0.9, ""),
            StageChange("provision", 4.04),
        )
        == """\
==> provision  launching all nodes, or none
    trying us-east-1a g4dn.xlarge on-demand: 2 x $0.526/h
    + security group sg-1 (0.3 s)
    x EC2 fleet: InsufficientInstanceCapacity: launching 2 instances: We currently do not have sufficient g4dn.xlarge \
capacity in the Availability Zone you requested (us-east-1a)
    us-east-1a g4dn.xlarge on-demand: no capacity (InsufficientInstanceCapacity)
    ... waiting for the deletion of EC2 fleet s1, after 12 s
    ... engine message: two\ufffd
    - IAM role s1 (0.3 s)
    node 1: is up
    [rank 2] epoch=1 \ufffd[31mred
    [rank 0] first
    [rank 0] second
    the only rank needs no number
    took 4.0 s"""
    )


def test_different_failure_reason_is_printed_again():
    other = Note("x us-east-1b: other")
    assert "other" in told(event("failed", "create", "aws:ec2/fleet:Fleet", CAPACITY), other)


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("aws:ec2/launchTemplate:LaunchTemplate", "launch template"),
        ("aws:ec2/routeTableAssociation:RouteTableAssociation", "route table association"),
        ("aws:iam/role:Role", "IAM role"),
        ("aws:ec2/vpc:Vpc", "VPC"),
        ("odd", "odd"),
    ],
)
def test_resource_types_are_shown_in_words(token, words):
    assert resource_words(token) == words


def test_aws_error_without_a_code_is_not_shortened():
    assert shorten_aws_error("no such thing. Really.") == "no such thing. Really."


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("+ numpy==2.0", ""),
        ("Collecting torch<2.11", ""),
        ("Using cached six-1.17.0-py2.py3-none-any.whl (11 kB)", ""),
        ("Downloading six-1.17.0-py2.py3-none-any.whl (11 kB)", ""),
        ("Downloading torch-2.10.0-cp311-manylinux.whl (900.0 MB)",) * 2,
        ("Downloading torch (873.2MiB)",) * 2,
        ("Resolved 26 packages in 812ms",) * 2,
        ("Installing collected packages: a, b, c", "installing 3 packages"),
        ("Successfully installed six-1.17.0", "installed six-1.17.0"),
        ("installing the requirements",) * 2,
        ("waiting for another process to build the same environment",) * 2,
    ],
)
def test_installer_output_is_shortened_unless_verbose(line, shown):
    assert installer_line(line) == shown
    assert told(Note(line, 0)) == (f"    node 0: {shown}" if shown else "")
    assert told(Note(line, 0), verbose=True) == f"    node 0: {line}"


def test_every_stage_has_a_lowercase_description():
    assert all(text and text[0].islower() for text in STAGES.values())


def test_address_of_a_service_is_repeated_before_output_buries_it():
    address = ServiceAddress("notebook", "http://127.0.0.1:8888/lab?token=x")
    lines = told(address, *(RankOutput(0, ("x",) * 60, single_rank=True) for _ in range(4))).split("\n")
    repeated = [number for number, line in enumerate(lines) if line.strip() != "x"]
    assert repeated == [0, 121, 242]
    assert lines[0] == "    http://127.0.0.1:8888/lab?token=x"
    assert lines[121] == "    notebook is ready: http://127.0.0.1:8888/lab?token=x"


def test_address_of_a_service_with_its_token_is_not_kept_in_the_progress_log(tmp_path, capsys):
    screen = Screen()
    screen.emit(LogFolder(tmp_path))
    screen.emit(Note("kept"))
    screen.emit(ServiceAddress("notebook", "http://127.0.0.1:8888/lab?token=x"))
    assert "token=x" in capsys.readouterr().out
    logged = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "kept" in logged
    assert "token" not in logged


@pytest.mark.parametrize(("style", "named"), [("in-place", True), ("lines", False), ("verbose", False)])
def test_failed_command_names_the_progress_log_if_its_messages_were_not_kept_on_the_terminal(tmp_path, style, named):
    stream = io.StringIO()
    display = ProgressDisplay(Output(stream), stream, style)
    display.emit(LogFolder(tmp_path / "lab"))
    note = f"all progress messages are in {tmp_path / 'lab' / 'progress.log'}"
    assert list(take_failure_notes(5)) == ([note] if named else [])
    display.emit(LogFolder(tmp_path / "lab"))
    (tmp_path / "lab" / "progress.log").unlink()  # the deletion of a cluster removes it
    assert list(take_failure_notes(5)) == []
