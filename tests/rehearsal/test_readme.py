"""Run the documented commands: the fenced blocks that are marked `<!-- run -->`."""

import re
import shlex
from pathlib import Path

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


@pytest.fixture
def workspace(cold_workspace):
    """Run every command in a new interpreter, as for a user."""
    return cold_workspace


ROOT = Path(__file__).parents[2]
MARKED = re.compile(r"^<!-- run -->\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def lines(page: str) -> list[str]:
    found = MARKED.findall((ROOT / page).read_text())
    assert found, f"{page} has no block that is marked for running"
    return [line.partition("#")[0].strip() for block in found for line in block.splitlines() if line.strip()]


def run_all(workspace, commands: list[str]) -> list[str]:
    told = []
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "cloudgpu"
        told.append(workspace.run(*arguments).stdout)
    return told


def test_readme_commands_run_as_documented(workspace):
    *told, cost, stopped = run_all(workspace, lines("README.md"))
    assert "quickstart" in told[0]
    assert "cluster lab is running (simulated)" in told[2]
    assert "is deleted, verified by tag search; 2 instances terminated" in told[-1]
    assert "simulated $" in cost
    assert "stopped" in stopped


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("docs/guides/choosing.md", "succeeded (simulated)"),
        ("docs/guides/doctor.md", '"Effect": "Allow"'),
        ("docs/guides/storage.md", "storage sets is deleted, verified by tag search"),
        ("docs/guides/machine-images.md", "image lab-base (ami-"),
        ("docs/guides/catalog-refresh.md", "Running On-Demand P instances (L-417A185B)"),
        ("docs/explanation/planning.md", "succeeded (simulated)"),
    ],
)
def test_commands_of_a_page_run_as_documented(workspace, page, shown):
    commands = lines(page)
    if not any(command.startswith("cloudgpu recipe new") for command in commands):
        workspace.run("recipe", "new", "my-run", "--gpu", "V100-32GB:8")
    assert shown in run_all(workspace, commands)[-1]
    assert workspace.left() == {}


def test_fault_guide_commands_run_as_documented(workspace):
    told = run_all(workspace, lines("docs/guides/faults.md"))
    assert any("us-east-1c/p3dn.24xlarge/* = 0" in one for one in told)
    assert client.find_running(workspace.home) is not None
    limits = client.script(workspace.cloud)["capacity"], client.faults(workspace.cloud)["rules"]
    assert limits == ({}, [])


def test_first_run_tutorial_commands_run_as_documented(workspace):
    *told, stopped = run_all(workspace, lines("docs/tutorials/first-run.md"))
    listed, begun, planned, trained, logged, cost, created, host, reused, status, ended = told
    assert "p3dn.24xlarge" in listed
    assert "recipes/my-run/train.py" in begun
    assert "2 nodes p3dn.24xlarge" in planned
    assert "succeeded (simulated)" in trained
    assert "left     nothing" in trained
    assert "[rank 1] rank 1 of 2" in logged
    assert "real $0.00, simulated $" in cost
    assert "cluster lab is running (simulated)" in created
    assert host.startswith("ip-127-")
    assert "cluster lab (2 x p3dn.24xlarge) is running until" in reused
    assert "lab  up  (simulated)" in status
    assert "is deleted, verified by tag search; 2 instances terminated" in ended
    assert "stopped" in stopped


def test_train_uses_second_zone_if_the_first_has_no_capacity(workspace):
    workspace.recipe()
    workspace.run("rehearsal", "capacity", "us-east-1c/p3dn.24xlarge/*=0")
    outcome = workspace.json("train", "plain", "--yes")
    assert outcome["zone"] == "us-east-1d"
    workspace.run("rehearsal", "capacity", "*/p3dn.24xlarge/*=1")
    refused = workspace.run("train", "plain", "--yes", code=4)
    # Each refusal is told when it happens, and the summary lists them again.
    assert refused.stdout.count("on-demand: no capacity (InsufficientInstanceCapacity)") == 2
    assert refused.stderr.count("InsufficientInstanceCapacity") == 2
    assert workspace.left() == {}


def test_lost_launch_response_and_passed_expiry_leave_nothing(workspace):
    workspace.recipe()
    rules = workspace.work / "faults.json"
    rules.write_text('[{"action": "CreateFleet", "phase": "after_effect", "do": "drop", "nth": 1}]')
    assert workspace.json("rehearsal", "faults", str(rules))["simulated"] is True
    # The fleet was made and nobody was told: it is found by its tag and ended, not paid for.
    error = workspace.json("up", "plain", "--yes", code=8)["error"]
    assert "no response" in error["message"]
    assert workspace.left() == {}
    workspace.run("rehearsal", "faults")
    assert len(workspace.json("up", "plain", "--yes")["nodes"]) == 2
    workspace.run("rehearsal", "advance", "2h")
    workspace.run("down", "plain")
    assert workspace.left() == {}
    assert workspace.json("rehearsal", "advance", "2h", "--back") == {"simulated": True, "advanced_s": -7200}


@pytest.mark.parametrize("arguments", [["logs"], ["train", "plain", "--yes"]])
def test_closed_output_pipe_ends_logs_but_not_train(workspace, arguments):
    """As with `| head`: `logs` ends with its reader, `train` continues to its end."""
    workspace.recipe()
    workspace.run("train", "plain", "--yes")
    process = workspace.popen(*arguments)
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=100) in ((141, 0) if arguments == ["logs"] else (0,)), err
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
    assert workspace.left() == {}
