"""Collecting outputs reports skipped files, files lost with their node and symlinks without their target."""

from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.errors import RemoteCommandError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent
from cloudgpu.run.collect import collect
from cloudgpu.run.job import Job
from cloudgpu.ssh.transfer.listing import SkippedDownload
from tests.fake_host import FakeHost

WORK = "/home/ubuntu/.cloudgpu/runs/plain-abc/work"


def node(index: int) -> Node:
    return Node(index, f"i-{index}", "127.0.0.1", 22, "ubuntu", ("SHA256:x",), "127.0.0.1", "p3.2xlarge", "us-east-1a",
                "V100", 1, True)  # fmt: skip


@pytest.fixture
def agents() -> list[Agent]:
    return [Agent(FakeHost(node(index)), "agent", "/home/ubuntu") for index in (0, 1)]


def job(*outputs: str) -> Job:
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "plain",
            "resources": {"instance_type": "p3.2xlarge", "nodes": 2},
            "launch": {"with": "each-node", "command": "true"},
            "outputs": list(outputs),
        }
    )
    return Job("plain-abc", recipe, Inventory("plain", (node(0), node(1))), "")


def test_skipped_output_is_reported_but_is_not_a_failure(agents: list[Agent], tmp_path: Path) -> None:
    agents[0].host.files[f"{WORK}/out/model.pt"] = b"1"
    agents[1].host.skipped = [SkippedDownload("out/\x1b[2Jpipe", "named pipe", lost=False)]
    collected = collect(job("out/"), agents, tmp_path)
    assert collected.files == ("out/model.pt",)
    assert collected.failures == collected.missing == ()
    assert [one.as_json() for one in collected.skipped] == [
        {"node": 1, "path": "out/\x1b[2Jpipe", "reason": "named pipe"}
    ]
    assert collected.notes == ("not fetched: node 1: out/\ufffd[2Jpipe: named pipe",)


def test_unreadable_output_is_a_failure(agents: list[Agent], tmp_path: Path) -> None:
    agents[0].host.files[f"{WORK}/out/model.pt"] = b"1"
    agents[0].host.skipped = [SkippedDownload("out/secret", "cannot be read: Permission denied", lost=True)]
    collected = collect(job("out/"), agents, tmp_path)
    assert collected.failures == ("node 0: out/secret: cannot be read: Permission denied",)
    assert collected.notes == collected.failures


def test_pattern_with_only_skipped_matches_is_a_failure(agents: list[Agent], tmp_path: Path) -> None:
    agents[0].host.files[f"{WORK}/out/model.pt"] = b"1"
    agents[0].host.skipped = [
        SkippedDownload("latest", "symlink that points outside the directory, to /scratch/7", lost=False)
    ]
    collected = collect(job("out/", "latest", "*.csv"), agents, tmp_path)
    (line,) = collected.failures
    assert line.startswith("no file that matches latest could be fetched: node 0: latest: symlink that points outside")
    assert collected.missing == ("*.csv",)


def test_symlink_to_unfetched_target_is_reported(
    agents: list[Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(
        _source: str, _patterns: object, to: Path, _on_skipped: object, _on_bytes: object, **_options: object
    ) -> list[str]:
        (to / "out").mkdir(parents=True)
        (to / "out/model.pt").write_text("1")
        (to / "out/best").symlink_to("../ckpt/7.pt")
        return ["out/best", "out/model.pt"]

    monkeypatch.setattr(agents[0].host, "fetch_tree", fetch)
    collected = collect(job("out/"), agents[:1], tmp_path)
    assert [(one.path, one.reason) for one in collected.skipped] == [
        ("out/best", "symlink to ckpt/7.pt, which was not fetched")
    ]
    assert collected.failures == ()
    (tmp_path / "out/model.pt").unlink()
    (tmp_path / "out/best").unlink()
    (tmp_path / "out").rmdir()
    assert collect(job("out/best"), agents[:1], tmp_path).failures != ()


def test_long_list_of_skipped_outputs_is_abbreviated(agents: list[Agent], tmp_path: Path) -> None:
    agents[0].host.files[f"{WORK}/out/model.pt"] = b"1"
    agents[0].host.skipped = [SkippedDownload(f"out/{number}", "socket", lost=False) for number in range(50)]
    collected = collect(job("out/"), agents, tmp_path)
    assert len(collected.skipped) == 50
    assert collected.notes[-1] == "not fetched: 30 more"


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("node-results.txt", "node-results.txt"),
        ("node-", "node-"),
        ("node-01/x", "node-01/x"),
        ("node-1x", "node-1x"),
        ("a/node-1/x", "a/node-1/x"),
        ("node-1", "node-0/node-1"),
        ("node-0/x", "node-0/node-0/x"),
        ("node-1/x", "node-0/node-1/x"),
        ("Node-12/x", "node-0/Node-12/x"),
    ],
)
def test_no_output_of_the_head_shares_its_place_with_another_node(
    agents: list[Agent], tmp_path: Path, name: str, local: str
) -> None:
    agents[0].host.files[f"{WORK}/{name}"] = b"of the head"
    agents[1].host.files[f"{WORK}/x"] = agents[1].host.files[f"{WORK}/{name}"] = b"of node 1"
    collected = collect(job(f"{name}", "x"), agents, tmp_path)
    assert collected.missing == collected.failures == ()
    assert set(collected.files) == {local, "node-1/x", f"node-1/{name}"}
    assert {path: (tmp_path / path).read_bytes() for path in collected.files} == {
        local: b"of the head",
        "node-1/x": b"of node 1",
        f"node-1/{name}": b"of node 1",
    }


def test_outputs_of_a_single_node_keep_their_names(agents: list[Agent], tmp_path: Path) -> None:
    agents[0].host.files[f"{WORK}/node-1/x"] = b"1"
    single = replace(job("node-1/"), inventory=Inventory("plain", (node(0),)))
    assert collect(single, agents[:1], tmp_path).files == ("node-1/x",)


def test_long_list_of_unreadable_outputs_is_abbreviated(agents: list[Agent], tmp_path: Path) -> None:
    agents[0].host.files[f"{WORK}/out/model.pt"] = b"1"
    agents[0].host.skipped = [SkippedDownload(f"out/{number}", "cannot be read", lost=True) for number in range(50)]
    collected = collect(job("out/"), agents, tmp_path)
    assert len(collected.failures) == 21
    assert collected.failures[-1] == "30 more outputs cannot be fetched"


def test_pattern_is_not_missing_while_a_node_may_have_a_match(
    agents: list[Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> list[str]:
        raise RemoteCommandError("the disk is gone")

    monkeypatch.setattr(agents[1].host, "fetch_tree", fail)
    collected = collect(job("out/", "none"), agents, tmp_path)
    assert collected.missing == ()
    assert collected.failures == ("node 1: the disk is gone",)
    monkeypatch.undo()
    assert collect(job("out/", "none"), agents, tmp_path).missing == ("out/", "none")
