"""Launchers on a shared two-node cluster: real MXNet and TensorFlow, and processes that a run does not wait for.

TensorFlow workers with mirrored variables are tested in `recipes/test_other_recipes.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.documentation import blocks, blocks_for
from tests.rehearsal.conftest import Workspace

PAGE = "docs/reference/launchers.md"
(KVSTORE,) = blocks_for(__file__, PAGE)
"""The Python example in the launchers reference."""

SERVERS = """
    import json, os
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id).join()
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable(0.0)

    @tf.function
    def step():
        return weight.assign_add(1.0)

    for _ in range(20):
        coordinator.schedule(step)
    coordinator.join()
    print(f"chief: weight={float(weight.read_value()):.0f} on {weight.device.partition('/task')[0]}", flush=True)
"""

PLACES = """
    import os

    print("node", os.environ["CLOUDGPU_NODE_RANK"], "of", os.environ["CLOUDGPU_NUM_NODES"], flush=True)
"""

FAILS = """
    import os, sys, time

    if os.environ["DMLC_ROLE"] == "server" and os.environ["CLOUDGPU_NODE_RANK"] == "1":
        sys.exit(7)
    time.sleep(600)
"""

TENSORFLOW = '{python: {requirements: ["tensorflow-cpu==2.15.1"]}, env: {TF_CPP_MIN_LOG_LEVEL: "2"}}'


@pytest.fixture(scope="module")
def cluster(
    make_workspace: Callable[[Path], AbstractContextManager[Workspace]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workspace]:
    """Create two nodes that all runs of this file share."""
    with make_workspace(tmp_path_factory.mktemp("launchers")) as workspace:
        recipe = workspace.recipe("stay", params="{}", launch="{with: each-node, command: 'true'}", metrics="{}")
        workspace.run("up", str(recipe), "--on", "rehearsal", "--name", "pair", "--yes")
        yield workspace


def trained(cluster: Workspace, name: str, script: str, launch: str, environment: str = "{}", code: int = 0) -> dict:
    recipe = cluster.recipe(
        name, script=script, params="{}", launch=launch, metrics="{}", outputs="[]", environment=environment
    )
    return cluster.json("train", str(recipe), "--on", "rehearsal", "--cluster", "pair", "--yes", code=code)


def printed(cluster: Workspace, run: dict) -> list[str]:
    logs = (cluster.home.run(run["run_id"]).root / "logs").glob("rank-*.log")
    lines = [line for log in logs for line in log.read_text().splitlines()]
    return sorted(line for line in lines if ":" in line[:14] or line.startswith("node "))


def test_command_runs_on_every_node_or_on_the_head_only(cluster: Workspace) -> None:
    each = trained(cluster, "each", PLACES, "{with: each-node, command: train.py}")
    assert printed(cluster, each) == ["node 0 of 2", "node 1 of 2"]
    head = trained(cluster, "head", PLACES, "{with: head-only, command: train.py}")
    assert printed(cluster, head) == ["node 0 of 2"]


def test_mxnet_kvstore_sums_over_its_servers(cluster: Workspace) -> None:
    (text,) = (block.text for block in blocks(PAGE) if "\nname: store\n" in block.text)
    folder = cluster.work / "recipes/store"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(text)
    (folder / "train.py").write_text(KVSTORE)
    run = cluster.json("train", str(folder), "--on", "rehearsal", "--cluster", "pair", "--yes")
    assert printed(cluster, run) == ["worker 0 of 2: sum=11", "worker 1 of 2: sum=11"]


def test_failed_server_ends_the_run_and_is_named(cluster: Workspace) -> None:
    launch = "{with: kvstore, kvstore: dist_async, command: train.py}"
    run = trained(cluster, "fails", FAILS, launch, code=5)
    assert (run["state"], run["failed_rank"], run["reason"]) == ("failed", 3, "server: exit code 7")


def test_tensorflow_servers_exit_with_their_chief(cluster: Workspace) -> None:
    launch = "{with: tf-config, servers_per_node: 1, command: train.py}"
    run = trained(cluster, "servers", SERVERS, launch, TENSORFLOW)
    assert printed(cluster, run) == ["chief: weight=20 on /job:ps/replica:0"]
