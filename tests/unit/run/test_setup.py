"""The inputs of a recipe's setup, and the requests to the nodes."""

import json
from pathlib import Path

import pytest

from cloudgpu.run.progress import Note
from cloudgpu.run.stage import setup_digest, stage_job
from tests.fake_host import ScriptedResult
from tests.unit.run.test_staging import agents, job


@pytest.fixture(name="base")
def _base(tmp_path: Path) -> Path:
    for name in ("requirements.txt", "train.py", "src/a.c", "src/deep/b.c"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def digest_of(base: Path, setup: str = "pip install -r requirements.txt && make -C ./src", **more) -> str:
    return setup_digest(job(setup=setup, **more).recipe, base)


def test_a_recipe_without_setup_has_no_digest(base: Path) -> None:
    assert digest_of(base, "") == ""


@pytest.mark.parametrize(
    ("changed", "again"),
    [("requirements.txt", True), ("src/a.c", True), ("src/deep/b.c", True), ("train.py", False)],
)
def test_a_changed_file_runs_setup_again_if_the_script_names_it(base: Path, changed: str, again: bool) -> None:
    before = digest_of(base)
    (base / changed).write_text("changed")
    assert (digest_of(base) != before) == again


@pytest.mark.parametrize("setup", ["pip install -e .", 'pip install -e "."', "pip install ./"])
def test_the_whole_work_directory_is_an_input_if_the_script_names_it(base: Path, setup: str) -> None:
    before = digest_of(base, setup)
    (base / "train.py").write_text("changed")
    assert digest_of(base, setup) != before


def test_script_variables_and_names_of_secrets_are_inputs(base: Path) -> None:
    others = (
        {"environment": {"env": {"A": "1"}}},
        {"environment": {"env": {"A": "2"}}},
        {"environment": {"secrets": ["TOKEN"]}},
    )
    digests = {digest_of(base), digest_of(base, "make"), *(digest_of(base, **more) for more in others)}
    assert len(digests) == 5
    assert digest_of(base) == digest_of(base, params={"lr": 1}, workdir=".")


def staged_requests(base: Path, ran: bool, **sections) -> tuple[list[dict], list[Note]]:
    """Stage a recipe with a setup on two nodes. Return the requests of node 0, and the progress."""
    both, heard = agents(2), []
    lines = '{"progress":"running setup"}\n' if ran else ""
    for agent in both:
        agent.host.on(" env$", ScriptedResult(reply=lambda _: json.dumps({"interpreter": "/e/bin/python"}) + "\n"))
        agent.host.on(" setup$", ScriptedResult(reply=lambda _: lines + json.dumps({"ran": ran}) + "\n"))
    given = job(setup="make -C src", **sections)
    stage_job(given, both, lambda _: (), base, heard.append, secrets={"TOKEN": "s3cr3t"})
    sent = [(command.text.rpartition(" ")[2], command.stdin) for command in both[0].host.sent]
    return [{"verb": verb, **json.loads(stdin)} for verb, stdin in sent if verb in ("env", "setup")], heard


def test_every_node_runs_setup_after_its_environment_is_built(base: Path) -> None:
    environment = {"python": {"requirements": ["x"]}, "env": {"A": "1"}, "secrets": ["TOKEN"]}
    (env, setup), heard = staged_requests(base, ran=True, environment=environment)
    digest = setup_digest(job(setup="make -C src", environment=environment).recipe, base)
    assert (env["verb"], env["setup"]) == ("env", digest)
    assert setup == {
        "verb": "setup",
        "script": "make -C src",
        "digest": digest,
        "interpreter": "/e/bin/python",
        "workdir": "/home/ubuntu/.cloudgpu/runs/plain-abc/work",
        "root": "/home/ubuntu/.cloudgpu/setup",
        "env": {"A": "1"},
        "secrets": {"TOKEN": "s3cr3t"},
    }
    assert sorted(note.node for note in heard if note.text == "running setup") == [0, 1]


def test_cached_setup_is_reported_once(base: Path) -> None:
    _, heard = staged_requests(base, ran=False)
    assert [note.text for note in heard] == ["setup already ran on every node with the same inputs"]
