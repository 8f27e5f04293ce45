import grp
import json
import os
import pwd
import time
from pathlib import Path

import pytest

from cloudgpu.node.agent import probe
from cloudgpu.node.agent.probe import bootstrap_state, parse_fi_info, parse_gpus

FIXTURES = sorted((Path(__file__).parent / "nvidia_smi").glob("*.json"))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_nvidia_smi_output_is_parsed(path: Path) -> None:
    case = json.loads(path.read_text())
    if case["expect"] is None:
        with pytest.raises(ValueError, match=r"unpack|literal"):
            parse_gpus(case["output"])
    else:
        assert parse_gpus(case["output"]) == case["expect"]


def test_nvidia_smi_fixtures_are_present() -> None:
    assert len(FIXTURES) >= 5


def test_fi_info_lists_each_domain_once() -> None:
    block = "provider: efa\n    fabric: efa\n    domain: {}-rdm\n    version: 122.0\n    type: FI_EP_RDM\n"
    text = block.format("rdmap0s6") + block.format("rdmap0s6") + block.format("rdmap0s7")
    assert parse_fi_info(text) == ["rdmap0s6-rdm", "rdmap0s7-rdm"]
    assert parse_fi_info("fi_getinfo: -61 (No data available)") == []


def test_bootstrap_state_is_read_from_node_files(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert bootstrap_state(root)["bootstrap"] == "none"
    instance = tmp_path / "var/lib/cloud/instance"
    instance.mkdir(parents=True)
    assert bootstrap_state(root)["bootstrap"] == "running"
    (instance / "boot-finished").touch()
    assert bootstrap_state(root)["bootstrap"] == "none"
    state = tmp_path / "var/lib/cloudgpu/bootstrap.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"state": "failed", "step": "driver", "error": "no GPU"}')
    assert bootstrap_state(root) == {
        "bootstrap": "failed",
        "bootstrap_step": "driver",
        "bootstrap_error": "no GPU",
        "bootstrap_step_s": 0,
        "bootstrap_steps": [],
    }
    steps = [{"name": "python", "state": "done", "seconds": 8}]
    began = int(time.time()) - 40
    told = {"state": "running", "step": "driver", "error": "", "steps": steps, "began_epoch_s": began}
    state.write_text(json.dumps(told))
    found = bootstrap_state(root)
    assert (found["bootstrap"], found["bootstrap_steps"]) == ("running", steps)
    assert 40 <= found["bootstrap_step_s"] < 100
    state.write_text("{")
    assert bootstrap_state(root)["bootstrap"] == "failed"


@pytest.mark.parametrize(("state", "asked"), [("running", False), ("rebooting", False), ("done", True)])
def test_hardware_is_queried_only_after_the_bootstrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, asked: bool
) -> None:
    for name in ("nvidia-smi", "fi_info"):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/called\nexit 1\n")
        tool.chmod(0o755)
    (tmp_path / "var/lib/cloudgpu").mkdir(parents=True)
    (tmp_path / "var/lib/cloudgpu/bootstrap.json").write_text(json.dumps({"state": state, "step": "driver"}))
    monkeypatch.setenv("CLOUDGPU_NODE_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (facts,) = _probed()
    assert (facts["bootstrap"], facts["gpus"], facts["efa"]) == (state, [], [])
    assert (tmp_path / "called").exists() == asked


def _probed() -> list[dict]:
    lines: list[dict] = []
    probe.probe_node({}, lines.append)
    return lines


def test_groups_added_after_the_login_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    user = pwd.struct_passwd(("ubuntu", "x", 1000, 1000, "", "/home/ubuntu", "/bin/bash"))
    groups = {999: "docker", 4: "adm"}
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    monkeypatch.setattr(os, "getgid", lambda: 1000)
    monkeypatch.setattr(os, "getgroups", lambda: [4, 1000])
    monkeypatch.setattr(os, "getgrouplist", lambda name, _: {"ubuntu": [1000, 4, 999, 12345]}[name])
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((groups[gid], "x", gid, [])))
    assert probe.new_groups() == ["12345", "docker"]
    monkeypatch.setattr(os, "getgroups", lambda: [4, 999, 12345])
    assert probe.new_groups() == []


def test_user_without_an_entry_has_no_new_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", missing)
    assert probe.new_groups() == []


def test_description_of_a_host_contains_what_the_probe_reports(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CLOUDGPU_NODE_ROOT", str(tmp_path))
    probed, described = [], []
    probe.probe_node({}, probed.append)
    probe.describe_host({}, described.append)
    same = ("python", "hostname", "cpus", "gpus", "gpu_error")
    assert {name: described[0][name] for name in same} == {name: probed[0][name] for name in same}
    assert described[0]["venv"] is True
