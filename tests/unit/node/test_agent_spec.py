import pytest

from cloudgpu.node.agent.environments import setup
from cloudgpu.node.agent.gang.spec import read_start
from cloudgpu.node.agent.subprocess_tool import mask_url_credentials
from cloudgpu.node.agent.untrusted_data import AgentError

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


CONTAINER = {"name": "c", "client": ["docker", "--host", "unix:///d"], "run": ["run", "x"]}
OF_SETUP = {"image": "x@sha256:0", "shown": "x:1", "script": "/s", "run_script": ["docker", "exec"], "recipe": "plain"}
SETUP = {"script": "true", "digest": "ab" * 32, "interpreter": "", "workdir": "/w", "root": "/r"}


def read_both(image: object = "x:1", **container: object) -> None:
    """Read the same container in a `start` and a `setup` request. Both must accept it, or reject the same field."""
    shared = {**CONTAINER, **container}
    messages = []
    for read in (
        lambda: read_start({**GOOD, "container": {**shared, "image": image}}).container,
        lambda: setup._read({**SETUP, "container": {**OF_SETUP, **shared, "shown": image}}).container.container,
    ):
        try:
            messages.append(repr(read()))
        except AgentError as error:
            messages.append(error.message.replace("start: ", "").replace("setup: ", "").replace(".shown", ".image"))
    first, second = messages
    assert first == second
    if not first.startswith("ContainerSpec("):
        raise AgentError(first)


def test_container_of_ranks_and_container_of_a_setup_are_read_alike() -> None:
    read_both()
    read_both(gpus=True, devices=["0"], own=["/w"], plugin_check=["true"])
    read_both(devices=None, own=[], plugin_check=None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": None}, r"container\.name must be text"),
        ({"name": "a\0b"}, r"container\.name must be text"),
        ({"image": ""}, r"container\.image must be text"),
        ({"client": "docker"}, r"container\.client must be a list of strings"),
        ({"client": []}, r"container\.client must not be empty"),
        ({"run": None}, r"container\.run must not be empty"),
        ({"run": ["a", 1]}, r"container\.run must be a list of strings"),
        ({"devices": ["0\0"]}, r"container\.devices must be a list of strings"),
        ({"own": "/w"}, r"container\.own must be a list of strings"),
        ({"plugin_check": [1]}, r"container\.plugin_check must be a list of strings"),
    ],
)
def test_invalid_container_is_rejected_in_both_requests(wrong: dict, message: str) -> None:
    with pytest.raises(AgentError, match=f"^{message}$"):
        read_both(**wrong)


def test_url_credentials_are_masked_in_output() -> None:
    line = "Looking in https://user:pa55@index.example/simple and git+ssh://tok@host/x"
    assert mask_url_credentials(line) == "Looking in https://***@index.example/simple and git+ssh://***@host/x"
