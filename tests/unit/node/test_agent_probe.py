import json
import time
from pathlib import Path

import pytest

from cloudgpu.node.agent.probe import bootstrap_state, parse_fi_info, parse_gpus

FIXTURES = sorted((Path(__file__).parent / "nvidia_smi").glob("*.json"))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_nvidia_smi(path: Path) -> None:
    case = json.loads(path.read_text())
    if case["expect"] is None:
        with pytest.raises(ValueError, match=r"unpack|literal"):
            parse_gpus(case["output"])
    else:
        assert parse_gpus(case["output"]) == case["expect"]


def test_the_fixtures_are_there() -> None:
    assert len(FIXTURES) >= 5


def test_fi_info_names_each_domain_once() -> None:
    block = "provider: efa\n    fabric: efa\n    domain: {}-rdm\n    version: 122.0\n    type: FI_EP_RDM\n"
    text = block.format("rdmap0s6") + block.format("rdmap0s6") + block.format("rdmap0s7")
    assert parse_fi_info(text) == ["rdmap0s6-rdm", "rdmap0s7-rdm"]
    assert parse_fi_info("fi_getinfo: -61 (No data available)") == []


def test_bootstrap_states(tmp_path: Path) -> None:
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
