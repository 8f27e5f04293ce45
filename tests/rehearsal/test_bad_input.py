"""Invalid input: the error says what is wrong, where, and what to type instead; nothing is started."""

import json

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


@pytest.fixture(scope="module")
def workspace(make_workspace, tmp_path_factory):
    with make_workspace(tmp_path_factory.mktemp("workspace")) as made:
        made.recipe()
        made.run("rehearsal", "start")
        yield made
        assert client.faults(made.cloud)["mutating_calls"] == 0
        assert made.left() == {}
        status = made.json("status", "--all")
        assert status["clusters"] == []
        assert {run["state"] for run in status["runs"]} <= {"failed"}


def recipe_file(workspace, content):
    path = workspace.work / "it.yaml"
    path.write_bytes(content)
    return "it.yaml"


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12)
)
FILES = {
    "empty": (b"", ["it.yaml:1:", "contains no fields"]),
    "not-utf8": (b"schema: 1\nname: \xff\xfe\n", ["it.yaml:2:", "UTF-8"]),
    "bomb": (BOMB.encode(), ["it.yaml:", "aliases"]),
    "deep": (b"a: " + b"[" * 20000 + b"]" * 20000, ["it.yaml:1:", "deep"]),
    "binary": (bytes(range(256)), ["it.yaml"]),
    "list": (b"- 1\n- 2\n", ["it.yaml:1:"]),
    "python": (b"schema: 1\nname: !!python/object/apply:os.system ['touch pwned']\n", ["it.yaml:2:"]),
    "not-yaml": (b"schema: 1\nname: [unclosed\n", ["it.yaml:", "not valid YAML"]),
    "twice": (b"schema: 1\nname: a\nname: b\n", ["it.yaml:3:", "name"]),
    "field": (b"schema: 1\nname: a\nresources:\n  node: 2\n", ["it.yaml:4:", "resources.node", 'mean "nodes"']),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("command", ["plan", "train"])
def test_invalid_recipe_error_names_file_and_line(workspace, command, case):
    content, said = FILES[case]
    name = recipe_file(workspace, content)
    done = workspace.run(command, name, *(["--yes"] if command == "train" else []), code=2)
    assert "Traceback" not in done.stderr
    for text in said:
        assert text in done.stderr, done.stderr
    assert len(done.stderr) < 3000
    assert not (workspace.work / "pwned").exists()


WORDS = {
    "recipe": (("plan", "plian"), 2, ['"plian"', "plain"]),
    "path": (("plan", "./nowhere.yaml"), 2, ["nowhere.yaml"]),
    "folder": (("plan", "./hollow"), 2, ["hollow", "recipe.yaml"]),
    "assignment": (("plan", "plain", "--set", "nonsense"), 2, ["--set nonsense", "NAME=VALUE"]),
    "field": (("train", "plain", "--yes", "--set", "resources.nods=3"), 2, ['mean "resources.nodes"']),
    "launcher": (("train", "plain", "--yes", "--set", "launch.with=torchrn"), 2, ['mean "torchrun"']),
    "type": (
        ("up", "plain", "--yes", "--set", "resources.instance_type=p3dn.24xlrge"),
        7,
        ["p3dn.24xlrge", "--set resources.instance_type=p3dn.24xlarge"],
    ),
    "region": (("up", "plain", "--yes", "--set", "resources.regions=us-eats-1"), 7, ["us-eats-1", "us-east-1"]),
    "no-region": (("up", "plain", "--yes", "--region", "mars"), 2, ["--region", "mars"]),
    "nodes": (("up", "plain", "--yes", "--set", "resources.nodes=0"), 2, ["resources.nodes", "at least 1"]),
    "cluster": (("train", "plain", "--yes", "--cluster", "../../x"), 2, ["../../x"]),
    "cluster-name": (("up", "plain", "--yes", "--name", "Two Words"), 2, ["Two Words"]),
    "target": (("plan", "plain", "--on", "azure"), 2, ["azure", "rehearsal"]),
    "command": (("frobnicate",), 2, ["frobnicate"]),
    "run": (("logs", "nope"), 2, ["nope"]),
    "attach": (("attach", "nope"), 2, ["nope"]),
    "cancel": (("cancel", "nope"), 2, ["nope"]),
    "ssh": (("ssh", "nope"), 2, ["nope"]),
    "since": (("cost", "--since", "yesterday"), 2, ["yesterday", "7d"]),
    "climbing-run": (("logs", "../../etc"), 2, ["../../etc"]),
}


@pytest.mark.parametrize("case", WORDS)
def test_invalid_argument_error_suggests_a_correction(workspace, case):
    (workspace.work / "hollow").mkdir(exist_ok=True)
    args, code, said = WORDS[case]
    done = workspace.run(*args, code=code)
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    for text in said:
        assert text in done.stderr, done.stderr


def test_error_is_printed_as_a_single_json_document(workspace):
    done = workspace.run("plan", "plian", "--json", code=2)
    error = json.loads(done.stdout)["error"]
    assert (error["type"], error["exit_code"]) == ("RecipeError", 2)
    assert error["hint"]


DATA = {
    "no-file": ("nowhere/data.csv", "nowhere/data.csv"),
    "no-bucket": ("s3://no-such-bucket-of-ours/data/", "no-such-bucket-of-ours"),
}


@pytest.mark.parametrize("case", DATA)
def test_missing_data_is_reported_before_launch(workspace, case):
    source, said = DATA[case]
    workspace.recipe("data", data=f"- {{name: digits, from: '{source}', to: /data/digits}}")
    done = workspace.run("train", "data", "--yes", code=None)
    assert done.returncode in (2, 7, 8), (done.returncode, done.stdout, done.stderr)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
