"""The network between nodes, as a gang of real agents reads it. Scripts write what NCCL would: there is no GPU."""

import time

import pytest

pytestmark = [pytest.mark.main_path, pytest.mark.system]

PROVIDER = "NET/OFI Selected provider is efa, fabric is efa (found 4 nics)"


def scripts(gang, network: str, then: str) -> None:
    """Start one rank a node. Rank 1 is the only one whose NCCL may use another network than EFA."""
    for node in range(gang.nodes):
        lines = (PROVIDER, f"Using network {network if node else 'Libfabric'}")
        said = "".join(f"h:1:1 [0] NCCL INFO {line}\\n" for line in lines)
        script = f"printf '{said}' >{gang.dir(node)}/nccl/h-$$.log; {then}"
        gang.call("start", gang.spec(node, [script], transport={"required": "efa"}))


def test_run_on_another_network_than_the_required_one_is_stopped_on_every_node(make_gang) -> None:
    gang = make_gang()
    scripts(gang, "Socket", "sleep 300")
    began = time.monotonic()
    statuses = [gang.wait(node) for node in (0, 1)]
    assert time.monotonic() - began < 60
    assert [status["state"] for status in statuses] == ["failed", "failed"]
    assert [status["transport"]["name"] for status in statuses] == ["efa", "tcp"]
    failure = statuses[0]["first_failure"]
    assert (failure["node_index"], failure["rank"]) == (1, None)
    assert failure["reason"].startswith("resources.network is efa, but NCCL uses tcp (Using network Socket)")
    assert not any(gang.running(pid) for pid in gang.pids())


def test_network_that_is_named_just_before_the_end_still_fails_the_run(make_gang) -> None:
    gang = make_gang()
    scripts(gang, "Socket", "true")
    assert gang.wait(0)["state"] == "failed"


def test_run_on_the_required_network_succeeds_and_its_network_is_followed(make_gang) -> None:
    gang = make_gang()
    scripts(gang, "Libfabric", "true")
    assert gang.wait(1)["state"] == "succeeded"
    out, _ = gang.popen("follow", {"run_dir": str(gang.dir(1)), "offsets": {}}).communicate(timeout=60)
    assert b'{"transport":{"name":"efa","line":"Using network Libfabric","why":""}}' in out.split(b"\n")


def test_run_whose_network_is_unknown_is_not_stopped(make_gang) -> None:
    gang = make_gang()
    gang.start("true", transport={"required": "efa"})
    status = gang.wait(0)
    assert (status["state"], status["transport"]["name"]) == ("succeeded", "unknown")


def test_run_that_is_not_watched_reports_no_network(make_gang) -> None:
    gang = make_gang()
    gang.start("true")
    assert gang.wait(0)["transport"] is None
