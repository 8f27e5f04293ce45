"""The agent's `setup`: the script runs once for equal inputs, and every run gets the files that it created."""

import os
from pathlib import Path

import pytest

from cloudgpu.node.agent.environments import environment, setup
from cloudgpu.node.agent.environments.environment import EnvironmentRequest, provide_environment
from cloudgpu.node.agent.environments.setup import SetupRequest, provide_setup
from cloudgpu.node.agent.untrusted_data import AgentError

DIGEST = "ab" * 32


class Node:
    """A node with a work directory for each run."""

    def __init__(self, home: Path) -> None:
        self.home, self.heard = home, []

    def run(self, script: str, run: str = "run-1", **more) -> bool:
        workdir = self.home / run
        if not workdir.exists():
            workdir.mkdir()
            (workdir / "train.py").write_text("train")
        defaults = {"digest": DIGEST, "interpreter": "python3", "workdir": str(workdir)}
        request = SetupRequest(script, root=str(self.home / "setup"), **{**defaults, **more})
        return provide_setup(request, self.heard.append)

    def files(self, run: str) -> dict[str, str]:
        top = self.home / run
        return {str(path.relative_to(top)): path.read_text() for path in sorted(top.rglob("*")) if path.is_file()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


SCRIPT = "echo building $NAME\nmkdir -p build/deep\necho x >> build/deep/lib.so\necho $NAME > made\n"


def test_script_runs_once_and_every_run_gets_what_it_created(node: Node) -> None:
    assert node.run(SCRIPT, "run-1", env={"NAME": "it's mine"})
    assert not node.run(SCRIPT, "run-2", env={"NAME": "it's mine"})
    assert node.heard == ["running setup", "building it's mine"]
    expected = {"build/deep/lib.so": "x\n", "made": "it's mine\n", "train.py": "train"}
    assert node.files("run-1") == node.files("run-2") == expected


@pytest.mark.parametrize("change", [{"digest": "cd" * 32}, {"interpreter": "/usr/bin/python3"}])
def test_other_inputs_run_it_again(node: Node, change: dict) -> None:
    node.run(SCRIPT, "run-1")
    assert node.run(SCRIPT, "run-2", **change)


def test_files_of_the_run_are_neither_changed_nor_brought_back(node: Node) -> None:
    node.run("echo patched > train.py; echo new > new.py; echo n > notes")
    assert node.heard[1:] == ["setup changed files of the work directory; runs do not get these changes: train.py"]
    (node.home / "run-2").mkdir()
    (node.home / "run-2" / "new.py").write_text("sent with the run")
    node.run("unused", "run-2")
    assert node.files("run-2") == {"new.py": "sent with the run", "notes": "n\n"}


def test_failed_script_is_not_cached_and_its_last_lines_are_in_the_error(node: Node) -> None:
    with pytest.raises(AgentError) as caught:
        node.run("echo one; echo two >&2; false | cat; echo three")
    assert caught.value.message == "setup failed (bash: exit code 1):\none\ntwo"
    assert "correct `setup` in the recipe" in caught.value.hint
    assert node.run("echo repaired > ok")
    assert node.files("run-1") == {"ok": "repaired\n", "train.py": "train"}


def test_interrupted_script_runs_again(node: Node) -> None:
    node.run("echo 1 > a")
    (marker,) = (node.home / "setup").glob("*/.cloudgpu-complete.json")
    marker.unlink()
    assert node.run("echo 2 > b", "run-2")
    assert node.files("run-2") == {"b": "2\n", "train.py": "train"}


def test_script_ends_if_the_caller_has_disconnected(node: Node) -> None:
    def write(text: str) -> None:
        node.heard.append(text)
        if text.isdigit():
            raise BrokenPipeError

    workdir, root = node.home / "run-1", node.home / "setup"
    workdir.mkdir()
    request = SetupRequest("echo $$; exec sleep 600", DIGEST, "python3", str(workdir), str(root))
    with pytest.raises(BrokenPipeError):
        provide_setup(request, write)
    with pytest.raises(ProcessLookupError):
        os.kill(int(node.heard[-1]), 0)


def test_secrets_reach_the_script_but_neither_its_output_nor_the_disk(node: Node) -> None:
    with pytest.raises(AgentError) as caught:
        node.run('echo "token $TOKEN"; echo "${TOKEN}x" >&2; exit 3', secrets={"TOKEN": "hf_s3cr3t" * 60})
    shown = "\n".join([*node.heard, caught.value.message, repr(caught.value)])
    assert "hf_s3cr3t" not in shown
    assert f"token {'*' * 394}" in node.heard
    assert not [path for path in node.home.rglob("*") if path.is_file() and b"hf_s3cr3t" in path.read_bytes()]


def test_python_of_the_run_comes_first(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "env" / "bin"
    folder.mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (folder / "python").write_text('#!/bin/sh\necho "mine, in $VIRTUAL_ENV"\n')
    (folder / "python").chmod(0o700)
    node.run("python > out", interpreter=str(folder / "python"))
    assert node.files("run-1")["out"] == f"mine, in {tmp_path / 'env'}\n"


def test_environment_of_a_recipe_with_setup_is_its_own() -> None:
    base = os.path.realpath("/usr/bin/env")
    plain, with_setup, other = (
        environment._digest(environment._read({"requirements": ["x"], **more}), base)
        for more in ({}, {"setup": DIGEST}, {"setup": "cd" * 32})
    )
    assert len({plain, with_setup, other}) == 3


GOOD = {"script": "true", "digest": DIGEST, "interpreter": "python3", "workdir": "/w", "root": "/r"}


CONTAINER = {
    "name": "cloudgpu-setup-plain-0",
    "image": "x@sha256:0",
    "shown": "x:1",
    "client": ["docker", "--host", "unix:///run/docker.sock"],
    "run": ["run", "x"],
    "script": "/setup.sh",
    "run_script": ["docker", "exec"],
    "recipe": "plain",
}


@pytest.mark.parametrize(
    "change",
    [
        {"container": []},
        {"container": {**CONTAINER, "image": ""}},
        {"container": {**CONTAINER, "client": ["docker"]}},
        {"container": {**CONTAINER, "run_script": []}},
        {"container": {**CONTAINER, "run": ["a", 1]}},
        {"container": {**CONTAINER, "script": "relative"}},
        {"container": {**CONTAINER, "recipe": "../x"}},
        {"env": {"A\nB": "x"}},
        {"script": None},
        {"script": "a\0b"},
        {"digest": "../../etc"},
        {"workdir": "relative"},
        {"root": "relative"},
        {"env": ["A"]},
        {"env": {"A": 1}},
        {"secrets": {"A=B": "x"}},
        {"secrets": {"": "x"}},
    ],
)
def test_invalid_request_is_rejected_without_its_values(change: dict) -> None:
    assert setup._read(GOOD).script == "true"
    with pytest.raises(AgentError, match=r"^setup: "):
        setup._read({**GOOD, **change})
    assert repr(setup._read({**GOOD, "secrets": {"A": "hidden"}})) == f"SetupRequest(digest='{DIGEST}')"


def test_key_of_a_setup_in_a_container_begins_with_the_recipe() -> None:
    assert setup._read({**GOOD, "container": CONTAINER}).key == f"plain-{DIGEST[:20]}"


def test_failed_installation_shows_the_last_lines_and_the_hint_names_the_field(tmp_path, monkeypatch) -> None:
    """The interpreter makes an environment whose Python fails like pip without a package."""
    error = "ERROR: No matching distribution found for no-such-package"
    (tmp_path / "python3").write_text(
        '#!/bin/sh\n[ "$1 $2" = "-m venv" ] || exit 1\nmkdir -p "$3/bin"\n'
        f"printf '#!/bin/sh\\necho looking\\necho {error} >&2\\nexit 1\\n' >\"$3/bin/python\"\n"
        'chmod 755 "$3/bin/python"\n'
    )
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    request = EnvironmentRequest(("no-such-package",), None, str(tmp_path / "envs"))
    with pytest.raises(AgentError) as caught:
        provide_environment(request, lambda _: None)
    assert caught.value.message.splitlines() == [
        "installing the requirements failed (python: exit code 1):",
        "looking",
        error,
    ]
    assert caught.value.hint.startswith("check the names and versions in environment.python.requirements")


@pytest.mark.slow
def test_missing_package_is_named_and_the_hint_names_the_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    request = EnvironmentRequest(("no-such-package",), None, str(tmp_path / "envs"))
    with pytest.raises(AgentError) as caught:
        provide_environment(request, lambda _: None)
    first, *output = caught.value.message.splitlines()
    assert first == "installing the requirements failed (python: exit code 1):"
    assert output[-1] == "ERROR: No matching distribution found for no-such-package"
    assert caught.value.hint.startswith("check the names and versions in environment.python.requirements")
