"""A recipe's shell script: its files, its variables, and how it behaves when a node runs it."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.launch.launchers import LAUNCHERS, launch
from cloudgpu.launch.ranks import with_script
from cloudgpu.recipe.template import variable_name
from tests.unit.launch.test_every_launcher import HERE, recipe
from tests.unit.launch.test_torchrun import nodes

PARAMS = {"lr": 0.1, "run-name": "it's $(new)", "amp": True, "resume": None}


def scripted(launcher: str, script: str = "true", **more):
    read = recipe(launcher, command="", launch={"run": script}, **more)
    return read.model_copy(update={"params": {**read.params, **PARAMS}})


@pytest.mark.parametrize("name", sorted(set(LAUNCHERS) - {"service"}))
def test_every_launcher_starts_the_script_and_every_node_has_its_files(name: str) -> None:
    gang = with_script(launch(scripted(name, "make all"), nodes(), HERE), scripted(name, "make all"), HERE)
    started = [rank.argv for node in gang for rank in node.ranks if rank.role not in ("scheduler", "server")]
    assert started
    assert all(argv[-1] == f"{HERE.run_dir}/script/start" for argv in started)
    for node in gang:
        files = {file.path: file for file in node.files}
        assert files["script/run.sh"].content == "make all"
        assert files["script/start"].mode == 0o700


def test_a_command_has_no_script_files_and_no_script_variables() -> None:
    gang = with_script(launch(recipe("each-node"), nodes(), HERE), recipe("each-node"), HERE)
    assert [node.files for node in gang] == [(), ()]
    assert not any(name.startswith("CLOUDGPU_PARAM") for name in gang[0].ranks[0].env)


def test_variables_have_the_values_that_placeholders_have() -> None:
    ctx = replace(HERE, data={"image-net": "/data/a b"}, storage={"scratch": "/s"})
    more = {
        "data": [{"name": "image-net", "from": "s3://bucket/sets/", "to": "/data/a b"}],
        "storage": [{"name": "scratch", "to": "/s"}],
    }
    env = launch(scripted("mpirun", **more), nodes(), ctx)[0].ranks[0].env
    assert {name: value for name, value in env.items() if name.startswith(("CLOUDGPU_PARAM", "CLOUDGPU_DATA"))} == {
        "CLOUDGPU_PARAM_KIND": "dist_sync",
        "CLOUDGPU_PARAM_LR": "0.1",
        "CLOUDGPU_PARAM_RUN_NAME": "it's $(new)",
        "CLOUDGPU_PARAM_AMP": "true",
        "CLOUDGPU_PARAM_RESUME": "",
        "CLOUDGPU_DATA_IMAGE_NET": "/data/a b",
    }
    assert env["CLOUDGPU_STORAGE_SCRATCH"] == "/s"
    assert env["CLOUDGPU_HOSTFILE"] == f"{HERE.run_dir}/hostfile"


def test_every_placeholder_of_a_run_names_a_variable_that_ranks_have() -> None:
    env = launch(scripted("each-node"), nodes(), replace(HERE, checkpoint="/c"))[0].ranks[0].env
    for name in ("run", "outputs", "node_rank", "num_nodes", "head_address", "master_port", "checkpoint"):
        assert variable_name(name) in env


def run_script(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a node would, with an interpreter of its own."""
    folder = tmp_path / "it's bin"
    folder.mkdir()
    (folder / "python").write_text("#!/bin/sh\necho the run\\'s python: $1\n")
    (folder / "python").chmod(0o700)
    ctx = replace(HERE, run_dir=str(tmp_path / "run dir"), interpreter=str(folder / "python"))
    (node, _) = with_script(launch(scripted("each-node", script), nodes(), ctx), scripted("each-node", script), ctx)
    for file in node.files:
        path = Path(ctx.run_dir) / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content)
        path.chmod(file.mode)
    (rank,) = node.ranks
    return subprocess.run(
        rank.argv, env={**os.environ, **rank.env}, capture_output=True, text=True, timeout=30, check=False
    )


def test_script_runs_with_the_python_of_the_run_and_unchanged_values(tmp_path: Path) -> None:
    done = run_script(tmp_path, 'for n in 1 2; do echo "$n: $CLOUDGPU_PARAM_RUN_NAME"; done\npython train.py\n')
    assert done.stdout.splitlines() == ["1: it's $(new)", "2: it's $(new)", "the run's python: train.py"]
    assert done.returncode == 0


@pytest.mark.parametrize("script", ["false\necho after", "false | cat\necho after"])
def test_script_stops_at_the_first_failed_command(tmp_path: Path, script: str) -> None:
    done = run_script(tmp_path, script)
    assert (done.returncode, done.stdout) == (1, "")


def test_errors_of_bash_have_the_line_numbers_of_the_recipe(tmp_path: Path) -> None:
    done = run_script(tmp_path, "true\nnonsense\n")
    assert done.returncode == 127
    assert "run.sh: line 2: nonsense: command not found" in done.stderr
