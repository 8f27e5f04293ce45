import pytest

from cloudgpu.node.agent.errors import AgentError
from cloudgpu.node.agent.gang.spec import read_start
from cloudgpu.node.agent.subprocess_tool import mask_url_credentials

GOOD = {
    "run_id": "r",
    "run_dir": "/run",
    "workdir": "~/w",
    "node_index": 1,
    "ranks": [{"rank": 2, "local_rank": 0, "argv": ["x"], "env": {"A": "b"}}],
    "secrets": {"PASSWORD": "hunter2"},
    "gang": {"head_address": "10.0.0.1", "port": 20001, "token": "t" * 32, "nodes": 2},
    "grace_s": 3,
}


def test_valid_start_request_is_parsed_without_exposing_secrets() -> None:
    spec = read_start(GOOD)
    assert (spec.node_index, spec.ranks[0].rank, spec.limits.grace_s, spec.limits.lost_s) == (1, 2, 3.0, 20.0)
    assert spec.workdir.startswith("/")
    assert "hunter2" not in repr(spec)


def test_single_node_request_needs_no_gang() -> None:
    assert read_start({**GOOD, "node_index": 0, "gang": {}}).gang.nodes == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"run_id": None},
        {"run_dir": "relative"},
        {"node_index": 2},
        {"node_index": True},
        {"ranks": [{"rank": 0, "argv": []}]},
        {"ranks": [{"rank": 0, "argv": ["a\0b"]}]},
        {"ranks": ["x"]},
        {"ranks": GOOD["ranks"] * 2},
        {"secrets": {"A=B": "hunter2"}},
        {"secrets": {"A": 7}},
        {"gang": {**GOOD["gang"], "token": "short"}},
        {"gang": {"nodes": 0}},
        {"grace_s": -1},
        {"lost_s": "hunter2"},
    ],
)
def test_invalid_start_request_is_rejected_without_exposing_secrets(wrong: dict) -> None:
    with pytest.raises(AgentError) as caught:
        read_start({**GOOD, **wrong})
    assert "hunter2" not in caught.value.message


def test_url_credentials_are_masked_in_output() -> None:
    line = "Looking in https://user:pa55@index.example/simple and git+ssh://tok@host/x"
    assert mask_url_credentials(line) == "Looking in https://***@index.example/simple and git+ssh://***@host/x"
