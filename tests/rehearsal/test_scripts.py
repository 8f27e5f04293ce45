"""Recipes with a setup and a shell script, on real nodes of the rehearsal cloud."""

import pytest

pytestmark = [pytest.mark.main_path, pytest.mark.rehearsal]

TOKEN = "hf_it's-a-s3cr3t"
RECIPE = """\
schema: 1
name: scripted
resources: {gpu: "T4:1", nodes: 2, regions: [us-east-1]}
params: {steps: 2}
environment:
  env: {NAME: nobody}
setup: |
  echo "setup on a node for $NAME with $TOKEN"
  tr a-z A-Z < words.txt > upper.txt
launch:
  with: each-node
  run: |
    for step in $(seq "$CLOUDGPU_PARAM_STEPS"); do echo "step $step of $NAME"; done
    echo "made by setup: $(cat upper.txt), token of ${#TOKEN}: $TOKEN"
    echo done > "$CLOUDGPU_OUTPUTS/result.txt"
outputs: [outputs/]
budget: {expiry: 1h}
"""
TRAIN = ("train", "scripted", "--yes", "--cluster", "c1", "--secret", "TOKEN=@token.txt", "--env", "NAME=ann")


def test_setup_runs_once_and_secrets_are_in_no_output_and_no_file_of_the_state_home(workspace):
    folder = workspace.work / "recipes" / "scripted"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "words.txt").write_text("first")
    (workspace.work / "token.txt").write_text(f"{TOKEN}\n")
    first = workspace.run(*TRAIN, "--keep").stdout
    stars = "*" * len(TOKEN)
    assert f"setup on a node for ann with {stars}" in first
    for rank in (0, 1):
        assert f"[rank {rank}] step 2 of ann" in first
        assert f"[rank {rank}] made by setup: FIRST, token of {len(TOKEN)}: {stars}" in first
    again = workspace.run(*TRAIN, "--set", "steps=1", "--keep").stdout
    assert "setup already ran on every node with the same inputs" in again
    assert "step 2 of ann" not in again
    assert f"[rank 0] made by setup: FIRST, token of {len(TOKEN)}: {stars}" in again
    (folder / "words.txt").write_text("second")
    assert "made by setup: SECOND" in workspace.run(*TRAIN).stdout
    workspace.run("down", "c1")
    assert TOKEN not in first + again
    holding = [
        path
        for path in workspace.home.root.rglob("*")
        if path.is_file() and not path.is_symlink() and TOKEN.encode() in path.read_bytes()
    ]
    assert holding == []


BOXED = """\
schema: 1
name: boxed
resources: {gpu: "T4:1", regions: [us-east-1]}
environment:
  container: {image: "nvcr.io/nvidia/pytorch:24.12-py3"}
setup: |
  echo "setup of the image"
  touch made
launch:
  with: each-node
  run: echo "found $(ls made)"
budget: {expiry: 1h}
"""


def test_setup_of_a_container_is_not_run_on_a_node_without_containers(workspace):
    folder = workspace.work / "recipes" / "boxed"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(BOXED)
    assert (
        "note: setup runs once per node, in the container's image" in workspace.run("recipe", "check", "boxed").stdout
    )
    planned = workspace.run("plan", "boxed", "--on", "aws", "--offline").stdout
    assert "setup runs once per node, in the container's image" in " ".join(planned.split())
    planned = workspace.run("plan", "boxed").stdout
    assert "setup and the command are not run" in " ".join(planned.split())
    done = workspace.run("train", "boxed", "--yes", "--cluster", "c1", "--keep").stdout
    assert "not run: needs nvcr.io/nvidia/pytorch:24.12-py3" in done
    assert "setup of the image" not in done
    (folder / "recipe.yaml").write_text(BOXED + "rehearsal: {environment: {env: {}}}\n")
    done = workspace.run("train", "boxed", "--yes", "--cluster", "c1").stdout
    assert "setup of the image" in done
    assert "found made" in done
    workspace.run("down", "c1")
