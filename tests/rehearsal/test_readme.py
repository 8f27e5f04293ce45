"""Run the documented commands: the fenced blocks that are marked `<!-- run -->`, each page in a home of its own."""

import shlex

import pytest

from cloudgpu.rehearsal import client
from tests.documentation import PAGES, blocks, commands, same_output
from tests.rehearsal.conftest import user_workspace

pytestmark = pytest.mark.rehearsal


@pytest.fixture
def workspace(tmp_path, monkeypatch, popen_class):
    """Run every command with the state home in its default place, as for a user."""
    with user_workspace(tmp_path, monkeypatch, popen_class) as made:
        yield made


def run_page(workspace, page: str) -> list[str]:
    """Run the commands of a page in their order, compare the output that it shows, and return all outputs."""
    found = blocks(page)
    assert any(block.mark == "run" for block in found), f"{page} has no block that is marked for running"
    outputs = []
    for block in found:
        if block.mark.startswith("file: "):
            workspace.work.joinpath(block.mark.removeprefix("file: ")).write_text(block.text)
        if block.mark == "run":
            for command, shown in commands(block.text):
                program, *arguments = shlex.split(command)
                assert program == "cloudgpu"
                if shown:
                    _, real = workspace.on_terminal(*arguments)
                    assert same_output(shown, real), f"{block}: {command}\n{real}"
                elif arguments[0] in {"up", "train"} and "--yes" not in arguments:
                    code, real = workspace.on_terminal(*arguments, question="Go ahead?")
                    assert code == 0, real
                else:
                    real = workspace.run(*arguments).stdout
                outputs.append(real)
    return outputs


def test_readme_commands_run_as_documented(workspace):
    outputs = run_page(workspace, "README.md")
    assert "quickstart" in outputs[0]
    assert "cluster lab is running (simulated)" in outputs[2]
    assert "is deleted, verified by tag search; 2 instances terminated" in outputs[6]
    assert "simulated $" in outputs[7]
    assert "stopped" in outputs[8]
    assert "recipes/my-run/train.py" in outputs[10]
    assert "my-run on 1 x g6.xlarge (1 x L4" in outputs[11]
    assert "succeeded (simulated)" in outputs[12]
    assert workspace.left() == {}


NEW_RECIPE = "recipe new my-run --gpu V100-32GB:8"
BEFORE = {
    "docs/explanation/planning.md": [NEW_RECIPE],
    "docs/guides/costs.md": [NEW_RECIPE],
    "docs/guides/machine-images.md": [NEW_RECIPE],
    "docs/guides/troubleshooting.md": [f"{NEW_RECIPE} --nodes 2", "up my-run --name lab --yes"],
    "docs/reference/recipe.md": [NEW_RECIPE],
}
"""What a page expects its reader to have done."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "last"),
    [
        ("docs/guides/choosing.md", "succeeded (simulated)"),
        ("docs/guides/costs.md", "\nmy-run,true,"),
        ("docs/guides/doctor.md", '"Effect": "Allow"'),
        ("docs/guides/storage.md", "storage sets is deleted, verified by tag search"),
        ("docs/guides/machine-images.md", "image lab-base (ami-"),
        ("docs/guides/catalog-refresh.md", "Running On-Demand P instances (L-417A185B)"),
        ("docs/guides/troubleshooting.md", "no cluster resources in 17 regions"),
        ("docs/explanation/planning.md", "succeeded (simulated)"),
        ("docs/reference/catalog.md", "A100 does not come with 60 GB"),
        ("docs/reference/checks.md", "[quota]"),
        ("docs/reference/recipe.md", "succeeded (simulated)"),
        ("docs/reference/software.md", "[retired]"),
    ],
)
def test_commands_of_a_page_run_as_documented(workspace, monkeypatch, page, last):
    for line in BEFORE.get(page, []):
        workspace.run(*shlex.split(line))
    monkeypatch.setenv("HF_TOKEN", "hf_from_the_environment")
    (workspace.work.parent / ".hf-token").write_text("hf_from_a_file")
    (workspace.work / "my.env").write_text("WANDB_NAME=second\nWANDB_MODE=offline\n")
    assert last in run_page(workspace, page)[-1]
    assert workspace.left() == {}


def test_every_page_with_commands_has_a_test():
    pages = {page for page in PAGES if any(block.mark == "run" for block in blocks(page))}
    (slow,) = [mark for mark in test_commands_of_a_page_run_as_documented.pytestmark if mark.name == "parametrize"]
    others = {"README.md", "docs/guides/faults.md", "docs/tutorials/first-run.md"}
    assert pages == {page for page, _ in slow.args[1]} | others


def test_fault_guide_commands_run_as_documented(workspace):
    told = run_page(workspace, "docs/guides/faults.md")
    assert any("us-east-1c/p3dn.24xlarge/* = 0" in one for one in told)
    assert any("simulated faults: 4 rules" in one for one in told)
    assert client.find_running(workspace.home) is not None
    limits = client.script(workspace.cloud)["capacity"], client.faults(workspace.cloud)["rules"]
    assert limits == ({}, [])


def test_first_run_tutorial_commands_run_as_documented(workspace):
    *told, stopped = run_page(workspace, "docs/tutorials/first-run.md")
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
