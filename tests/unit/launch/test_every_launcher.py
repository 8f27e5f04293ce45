"""Processes, environment and files of every launcher, compared with golden files, and rejected settings."""

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cloudgpu.errors import RecipeError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.launchers import LAUNCHERS, launch
from cloudgpu.launch.ssh_launchers import subnet
from cloudgpu.recipe.schema import Launch, Recipe
from cloudgpu.recipe.text_rules import LAUNCHER_VARIABLES
from tests.unit.launch.test_torchrun import CTX, GOLDEN, nodes

HERE = replace(CTX, run_dir="/home/ubuntu/.cloudgpu/runs/digits-7f3a")
CONTAINED = replace(HERE, enter={index: ("docker", "exec", "--interactive", f"c-{index}") for index in range(2)})


def recipe(launcher: str, **more) -> Recipe:
    command = more.pop("command", "train.py --of {num_nodes} --node {node_rank}")
    kind = {"kvstore": "{kind}"} if launcher == "kvstore" else {}
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "digits",
            "resources": {"gpu": "V100:2", "nodes": 2},
            "params": {"kind": more.pop("kind", "dist_sync")},
            "environment": {"env": {"NCCL_DEBUG": "INFO"}, "secrets": ["TOKEN"], **more.pop("environment", {})},
            "launch": {"with": launcher, "command": command, **kind, **more.pop("launch", {})},
            "checkpoint": {"path": "ckpt"},
            **more,
        }
    )


CASES = {
    "mpirun": (recipe("mpirun", command="train.py {hostfile}"), nodes(), HERE),
    "mpirun_container": (recipe("mpirun", environment={"container": {"image": "x:1"}}), nodes(), CONTAINED),
    "mpirun_simulated": (recipe("mpirun"), nodes(simulated=True), HERE),
    "deepspeed": (recipe("deepspeed", command="deepspeed --hostfile {hostfile} train.py"), nodes(), HERE),
    "kvstore": (recipe("kvstore"), nodes(), HERE),
    "kvstore_device": (recipe("kvstore", kind="device"), nodes(1), HERE),
    "tf-config": (recipe("tf-config"), nodes(), HERE),
    "tf-config_servers": (recipe("tf-config", launch={"servers_per_node": 1}), nodes(), HERE),
    "each-node": (recipe("each-node"), nodes(), HERE),
    "head-only": (recipe("head-only"), nodes(), HERE),
}


def shown(case: tuple) -> str:
    """Return the launch as readable JSON, with file contents as lists of lines."""
    gang = []
    for node in launch(*case):
        files = {f"{file.path} {file.mode:o}": file.content.splitlines() for file in node.files}
        gang.append({**asdict(node), "files": files})
    return json.dumps(gang, indent=1, sort_keys=True) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_launcher_output_matches_golden_file(name: str) -> None:
    expected = GOLDEN / f"{name}.json"
    text = shown(CASES[name])
    assert text == expected.read_text(), f"write the new text to {expected} if it is meant"


def test_launcher_registry_matches_recipe_schema_and_reserved_variables() -> None:
    names = Launch.model_fields["launcher"].annotation.__args__
    assert set(LAUNCHERS) == set(names) == set(LAUNCHER_VARIABLES)


@pytest.mark.parametrize("name", sorted(set(LAUNCHERS) - {"service"}))
def test_launcher_variable_in_recipe_env_is_rejected(name: str) -> None:
    for variable in LAUNCHER_VARIABLES[name]:
        with pytest.raises(RecipeError, match=variable):
            launch(recipe(name, environment={"env": {variable: "1"}}), nodes(), HERE)


@pytest.mark.parametrize("name", sorted(set(LAUNCHERS) - {"service"}))
def test_reserved_variables_are_set_for_every_rank(name: str) -> None:
    ranks = [rank for node in launch(recipe(name), nodes(), HERE) for rank in node.ranks]
    # Open MPI numbers its ranks itself.
    own = {"CLOUDGPU_RANK"} if name == "mpirun" else set()
    assert all(rank.env.keys() >= LAUNCHER_VARIABLES[name] - own for rank in ranks)


def test_kvstore_assigns_worker_server_and_scheduler_roles() -> None:
    ranks = [rank for node in launch(recipe("kvstore"), nodes(), HERE) for rank in node.ranks]
    assert sorted((rank.rank, rank.role, rank.decides) for rank in ranks) == [
        (0, "worker", True),
        (1, "worker", True),
        (2, "server", False),
        (3, "server", False),
        (4, "scheduler", False),
    ]
    assert {rank.env["DMLC_PS_ROOT_URI"] for rank in ranks} == {"10.0.0.2"}


@pytest.mark.parametrize("kind", ["local", "device", "nccl"])
def test_local_kvstore_runs_without_servers_on_a_single_node(kind: str) -> None:
    (node,) = launch(recipe("kvstore", kind=kind), nodes(1), HERE)
    assert not any(name.startswith("DMLC") for name in node.ranks[0].env)
    with pytest.raises(RecipeError, match="within one process"):
        launch(recipe("kvstore", kind=kind), nodes(), HERE)


def test_tf_config_ports_are_unique_across_nodes() -> None:
    ranks = [
        rank for node in launch(recipe("tf-config", launch={"ranks_per_node": 2}), nodes(), HERE) for rank in node.ranks
    ]
    places = json.loads(ranks[0].env["TF_CONFIG"])["cluster"]["worker"]
    assert len({place.rpartition(":")[2] for place in places}) == len(places) == 4


def test_secrets_are_passed_to_mpirun_by_name_only() -> None:
    """Launchers handle only the names of secrets, never their values."""
    node, _ = launch(recipe("mpirun"), nodes(), HERE)
    at = node.ranks[0].argv.index("TOKEN")
    assert node.ranks[0].argv[at - 1] == "-x"
    assert not any("TOKEN" in file.content for file in node.files)


def test_variables_that_differ_between_nodes_are_exported_by_rsh_agent() -> None:
    pair = nodes()
    apart = Inventory("c", (replace(pair.nodes[0], devices=(0, 1)), replace(pair.nodes[1], devices=(6, 7))))
    node, _ = launch(recipe("mpirun"), apart, HERE)
    agent = next(file for file in node.files if file.path == "mpi/rsh")
    assert "CUDA_VISIBLE_DEVICES" not in node.ranks[0].argv
    assert node.ranks[0].env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "export CUDA_VISIBLE_DEVICES=6,7; " in agent.content


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (("10.0.0.2", "10.0.0.3"), "10.0.0.0/24"),
        (("10.0.1.2", "10.0.2.3"), "10.0.0.0/22"),
        (("10.0.0.2", "fd00::1"), ""),
        (("10.0.0.2", "green"), ""),
    ],
)
def test_subnet_covers_private_addresses_of_all_nodes(addresses: tuple[str, ...], expected: str) -> None:
    pair = nodes().nodes
    given = tuple(replace(node, private_address=address) for node, address in zip(pair, addresses, strict=True))
    assert subnet(Inventory("c", given)) == expected


def test_rsh_agent_preserves_quoting_through_ssh_and_docker_exec(tmp_path: Path) -> None:
    """Quotes, dollar signs and spaces of Open MPI's command line survive the ssh shell, docker and the inner shell."""
    node, _ = launch(*CASES["mpirun_container"])
    agent = next(file for file in node.files if file.path == "mpi/rsh")
    for name, body in (("ssh", 'shift 3; exec sh -c "$*"'), ("docker", 'shift 3; exec "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = tmp_path / "rsh"
    script.write_text(agent.content)
    words = ["""printf '%s|' "a b" 'c $HOME'""", "'it''s'", "$CLOUDGPU_NODE_RANK"]
    line = ["sh", str(script), "10.0.0.3", *words]
    said = subprocess.run(line, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert said.stdout == "a b|c $HOME|its|1|"


@pytest.mark.parametrize(("path", "lacking"), [("mpi/mpirun", "mpirun: not found"), ("mpi/rsh", "ssh: not found")])
def test_missing_mpirun_or_ssh_is_named_in_the_error(tmp_path: Path, path: str, lacking: str) -> None:
    node, _ = launch(recipe("mpirun"), nodes(), HERE)
    script = tmp_path / "script"
    script.write_text(next(file.content for file in node.files if file.path == path))
    line = ["/bin/sh", str(script), "10.0.0.3", "true"]
    done = subprocess.run(line, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr.startswith(f"cloudgpu: {lacking}")
