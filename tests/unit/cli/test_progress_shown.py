"""What happens, as lines."""

import io

import pytest

from cloudgpu.backends.events import StageChange
from cloudgpu.cli.terminal.output import Output
from cloudgpu.cli.terminal.progress import STAGES, ProgressPrinter, installer_line, resource_words, shorten_aws_error
from cloudgpu.engine.base import Event
from cloudgpu.run.progress import MetricValue, Note, RankLine

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


def test_a_whole_story():
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
            MetricValue("accuracy", 0.9, ""),
            StageChange("provision", 4.04),
        )
        == """\
==> provision  launching the nodes, all or none
    trying us-east-1a g4dn.xlarge on-demand: 2 x $0.526/h
    + security group sg-1 (0.3 s)
    x EC2 fleet: InsufficientInstanceCapacity: launching 2 instances: We currently do not have sufficient g4dn.xlarge \
capacity in the Availability Zone you requested (us-east-1a)
    us-east-1a g4dn.xlarge on-demand: no capacity (InsufficientInstanceCapacity)
    ... waiting for the deletion of EC2 fleet s1, after 12 s
    ... program message: two\ufffd
    - IAM role s1 (0.3 s)
    node 1: is up
    [rank 2] epoch=1 \ufffd[31mred
    took 4.0 s"""
    )


def test_a_reason_is_said_again_when_it_is_another_one():
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
def test_resources_in_words(token, words):
    assert resource_words(token) == words


def test_a_refusal_without_a_code_stays_whole():
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
def test_installers_are_kept_short(line, shown):
    assert installer_line(line) == shown
    assert told(Note(line, 0)) == (f"    node 0: {shown}" if shown else "")
    assert told(Note(line, 0), verbose=True) == f"    node 0: {line}"


def test_every_stage_says_what_it_is():
    assert all(text and text[0].islower() for text in STAGES.values())
