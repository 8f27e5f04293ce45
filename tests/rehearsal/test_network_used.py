"""Whole runs whose ranks write what NCCL would write, at NCCL_DEBUG_FILE. Simulated: without a GPU no NCCL runs."""

import json
import time

import pytest

pytestmark = pytest.mark.rehearsal

SCRIPT = r"""
    import os, socket, sys, time

    network = sys.argv[1]
    if network != "none":
        name = os.environ["NCCL_DEBUG_FILE"].replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))
        assert (os.environ["NCCL_DEBUG"], os.environ["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET")
        with open(name, "w", buffering=1) as log:
            prefix = f"{socket.gethostname()}:{os.getpid()}:{os.getpid()} [0] NCCL INFO "
            if network == "Libfabric":
                log.write(prefix + "NET/OFI Selected provider is efa, fabric is efa (found 1 nics)\n")
            else:
                log.write(prefix + "NET/Plugin: Could not find: spcx libnccl-net-spcx.so\n")
            log.write(prefix + f"Using network {network}\n")
    if sys.argv[2] == "hang":
        time.sleep(600)
    print("accuracy=0.93", flush=True)
"""


@pytest.fixture(scope="module")
def pair(make_workspace, tmp_path_factory):
    """Create two nodes with EFA that all runs of this file share."""
    with make_workspace(tmp_path_factory.mktemp("network")) as workspace:
        recipe = workspace.recipe("stay", params="{}", launch="{with: each-node, command: 'true'}", metrics="{}")
        workspace.run("up", str(recipe), "--on", "rehearsal", "--name", "pair", "--yes")
        yield workspace


def recipe(workspace, network="auto", environment="{}"):
    return str(
        workspace.recipe(
            "net",
            script=SCRIPT,
            resources=f"{{instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1], network: {network}}}",
            params="{says: Libfabric, then: end}",
            launch="{with: torchrun, ranks_per_node: 2, command: 'train.py {says} {then}'}",
            outputs="[]",
            environment=environment,
        )
    )


def train(workspace, network, says, then="end", *, code=0, environment="{}"):
    path = recipe(workspace, network, environment)
    chosen = ("--set", f"says={says}", "--set", f"then={then}")
    done = workspace.run("train", path, "--on", "rehearsal", "--cluster", "pair", *chosen, "--yes", "--json", code=code)
    run = json.loads(done.stdout)
    stored = json.loads((workspace.home.run(run["run_id"]).root / "run.json").read_text())
    assert stored.get("transport") == run["transport"]
    return run, done.stderr


def test_inventory_has_the_planned_number_of_efa_interfaces(pair):
    stored = json.loads((pair.home.cluster("pair").root / "inventory.json").read_text())
    assert [node["efa"] for node in stored["nodes"]] == [1, 1]


def test_efa_run_records_its_network(pair):
    run, _ = train(pair, "efa", "Libfabric")
    assert (run["state"], run["transport"]) == ("succeeded", "efa")


def test_required_efa_fails_the_run_within_a_minute_when_nccl_uses_tcp(pair):
    began = time.monotonic()
    run, _ = train(pair, "efa", "Socket", "hang", code=5)
    assert time.monotonic() - began < 100  # the whole command; the script itself sleeps for ten minutes
    assert (run["state"], run["transport"]) == ("failed", "tcp")
    assert run["reason"].startswith("resources.network is efa, but NCCL uses tcp (Using network Socket; NET/Plugin: ")
    follow = next(stage["seconds"] for stage in run["stages"] if stage["name"] == "train")
    assert follow < 60


def test_auto_warns_of_tcp_with_its_cost_and_goes_on(pair):
    run, screen = train(pair, "auto", "Socket")
    assert (run["state"], run["transport"]) == ("succeeded", "tcp")
    assert (
        "warning: network between the nodes: tcp, although p3dn.24xlarge has EFA: a TCP flow carries at most 10 of the "
        "node's 100 Gb/s (NCCL: NET/Plugin: Could not find: spcx libnccl-net-spcx.so)"
    ) in " ".join(screen.split())


def test_run_without_nccl_has_an_unknown_network_only_if_one_is_required_and_does_not_fail(pair):
    for network, transport in (("auto", None), ("efa", "unknown")):
        run, screen = train(pair, network, "none")
        assert (run["state"], run["transport"]) == ("succeeded", transport)
        assert "warning" not in screen


def test_settings_of_the_recipe_win_and_are_named(pair):
    run, screen = train(pair, "auto", "none", environment="{env: {NCCL_DEBUG: WARN}}")
    assert run["transport"] is None
    assert "the recipe sets NCCL_DEBUG, so only the ranks' output shows the network" in " ".join(screen.split())
