"""Shell completion of names: from local files only, fast, and never with a traceback."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cloudgpu.cli import completion
from cloudgpu.cli.main import app

HOSTS = "hosts:\n- {name: dgx-1, address: 10.0.0.1, gpus: 'V100:8'}\n"
NAMES = ("clusters", "runs", "clusters_and_runs", "recipes", "gpus", "hosts", "assignments")
FISH = {"_CLOUDGPU_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
COMPLETIONS = [getattr(completion, name) for name in NAMES]


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A state home with two clusters and a run, and a working directory with a recipe."""
    return fill(tmp_path, monkeypatch)


def fill(tmp_path: Path, patch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    for name in ("clusters/lab/cluster.json", "clusters/large/cluster.json", "runs/plain-1/run.json"):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text("damaged")
    (home / "clusters/gone").mkdir()
    (tmp_path / "work/recipes/resnet").mkdir(parents=True)
    (tmp_path / "work/recipes/resnet/recipe.yaml").write_text("{")
    (tmp_path / "work/own.yaml").write_text("{")
    patch.chdir(tmp_path / "work")
    patch.setenv("CLOUDGPU_HOME", str(home))
    return tmp_path


def names(printed: str) -> list[str]:
    return [row.split("\t")[0] for row in printed.split("\n") if row]


OFFERED = [
    ("cloudgpu down la", ["lab", "large"]),
    ("cloudgpu down lab --run p", ["plain-1"]),
    ("cloudgpu extend lar", ["large"]),
    ("cloudgpu train plain --cluster la", ["lab", "large"]),
    ("cloudgpu ssh pl", ["plain-1"]),
    ("cloudgpu tunnel lab", ["lab"]),
    ("cloudgpu logs ", ["plain-1"]),
    ("cloudgpu attach p", ["plain-1"]),
    ("cloudgpu cancel x", []),
    ("cloudgpu train res", ["resnet", *(path.name for path in sorted(Path("recipes").glob("res*")))]),
    ("cloudgpu plan own", ["own.yaml"]),
    ("cloudgpu train quicks", ["quickstart"]),
    ("cloudgpu gpus show V1", ["V100"]),
    ("cloudgpu containers --gpu V1", ["V100"]),
    ("cloudgpu train quickstart --set resources.instance_t", ["resources.instance_type="]),
    ("cloudgpu train quickstart --set reso", ["resources."]),
    ("cloudgpu train quickstart --set ep", ["epochs="]),
    ("cloudgpu train --yes quickstart --set seed=1 --set ep", ["epochs="]),
    ("cloudgpu plan quickstart --set resources.ep", []),
    ("cloudgpu plan resnet --set reso", ["resources."]),  # the recipe is invalid
    ("cloudgpu plan quickstart --set resources.instance_type=p4de", ["resources.instance_type=p4de.24xlarge"]),
    ("cloudgpu im", ["image"]),  # the former name `images` is not offered
]
SHELL = """
import gc, json, os, sys
from cloudgpu import settings
from cloudgpu.cli import completion
from cloudgpu.cli.main import COMMANDS, entry
for row in COMMANDS:
    row.load()
gc.freeze()
for line in json.loads(sys.argv[1]):
    read, write = os.pipe()
    if not os.fork():
        for number in (1, 2):
            os.dup2(write, number)
        os.environ["_TYPER_COMPLETE_ARGS"] = sys.argv[0] = line
        try:
            entry()
        except SystemExit:
            sys.stdout.flush()
            os._exit(0)  # without the time to free all modules
    os.close(write)
    with open(read) as output:
        print(json.dumps(output.read()), flush=True)  # otherwise the next process inherits it
    os.wait()
"""
"""Complete lines, each in a process of its own. They are forked from one that has imported all commands."""


@pytest.fixture(scope="module")
def completed(tmp_path_factory) -> dict[str, list[str]]:
    """What a shell offers for each line, or the error messages."""
    with pytest.MonkeyPatch.context() as patch:
        fill(tmp_path_factory.mktemp("completed"), patch)
        lines = [line for line, _ in OFFERED]
        done = subprocess.run(
            [sys.executable, "-c", SHELL, json.dumps(lines)],
            env={**os.environ, **FISH},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    printed = map(json.loads, done.stdout.splitlines())
    return dict(zip(lines, map(names, printed), strict=True))


@pytest.mark.parametrize(("line", "offered"), OFFERED)
def test_names_are_offered_by_the_shell(line, offered, completed):
    assert completed[line] == sorted(set(offered))


@pytest.mark.usefixtures("work")
def test_command_offers_names_to_the_shell():
    done = subprocess.run(
        [Path(sys.executable).with_name("cloudgpu")],
        env={**os.environ, **FISH, "_TYPER_COMPLETE_ARGS": "cloudgpu down la"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (names(done.stdout), done.stderr) == (["lab", "large"], "")


@pytest.mark.usefixtures("work")
def test_hosts_are_offered_from_the_inventory():
    Path("hosts.yaml").write_text(HOSTS)
    context = typer.Context(typer.main.get_command(app))
    assert completion.hosts(context, "d") == ["dgx-1"]


@pytest.mark.parametrize("one", COMPLETIONS, ids=NAMES)
def test_completion_needs_no_network_and_never_fails(one, monkeypatch, tmp_path):
    def refuse(*_args, **_named):
        raise AssertionError("completion opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    context = typer.Context(typer.main.get_command(app))
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "none"))
    for incomplete in ("", "x", "/", "../", "~nobody/", "\x00", "a" * 5000, "resources.gpu=", "é", "=", "."):
        assert isinstance(one(context, incomplete), list)
    monkeypatch.setenv("CLOUDGPU_TARGET", "no such target")
    assert isinstance(one(context, ""), list)


def test_completions_of_names_load_no_cloud_library(work):
    program = f"""
import sys, json, os
os.environ["CLOUDGPU_HOME"] = {str(work / "home")!r}
from cloudgpu.cli import completion
names = completion.clusters(None, ""), completion.runs(None, ""), completion.recipes(None, "quick")
heavy = {{"boto3", "paramiko", "pulumi", "pydantic", "sqlalchemy", "moto"}}
print(json.dumps([names, sorted(heavy & set(sys.modules))]))
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    names, loaded = json.loads(shown)
    assert names == [["lab", "large"], ["plain-1"], ["quickstart"]]
    assert loaded == []
