"""From a GPU requirement to a finished run, using only the commands that cloudgpu prints."""

import re
import shlex

import pytest

pytestmark = pytest.mark.rehearsal


def commands(text: str) -> list[list[str]]:
    """Return the commands that a help text or a command's output suggests."""
    return [shlex.split(re.split(r"\s{2,}", found)[0]) for found in re.findall(r"(?<=  )cloudgpu (\S.*)", text)]


def named(found: list[list[str]], *words: str) -> list[str]:
    """Return the command that begins with these words."""
    (one,) = [command for command in found if command[: len(words)] == list(words)]
    return one


def test_printed_commands_lead_from_help_to_a_finished_run(workspace):
    first = commands(workspace.run("--help").stdout)
    listed = workspace.run(*named(first, "gpus")).stdout
    assert named(commands(workspace.run("gpus", "--help").stdout), "gpus", "--count") == named(first, "gpus")
    rows = [line for line in listed.splitlines() if re.match(r"\S+\.\S*large", line)]
    assert {line.split()[0] for line in rows} >= {"p3dn.24xlarge", "p4d.24xlarge"}

    following = commands(listed)
    assert "compute capability" in workspace.run(*named(following, "gpus", "show")).stdout
    begun = workspace.run(*named(following, "recipe", "new")).stdout

    following = commands(begun)
    planned = workspace.json(*named(following, "plan"))
    cheapest = rows[0].split()[0]
    assert {one["instance_type"] for one in planned["candidates"]} == {cheapest}
    assert [one for one in planned["findings"] if one["severity"] == "error"] == []

    assert "--yes" in workspace.run("train", "--help").stdout
    outcome = workspace.json(*named(following, "train", "my-run", "--on", "rehearsal"), "--yes")
    assert (outcome["state"], outcome["instance_type"]) == ("succeeded", cheapest)
    assert outcome["metrics"]["steps_per_s"]["value"] > 0
    assert workspace.left() == {}
