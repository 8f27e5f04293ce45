"""Programs, requirement files and data that a recipe names and the nodes would not have."""

from pathlib import Path

import pytest

from cloudgpu.app.planning.local_files import file_problems, local_file_issues, workdir_listing
from cloudgpu.cli.main import main
from cloudgpu.recipe import loader
from cloudgpu.recipe.schema import Recipe

FILES = ("train.py", "tools/run.sh", "requirements.txt", "deep/more.txt")


@pytest.fixture(name="base")
def _base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "linked").symlink_to("tools")
    (tmp_path / ".cloudgpuignore").write_text("secret.py\n")
    (tmp_path / "secret.py").write_text("")
    return tmp_path


def issues(base: Path, **sections) -> list[tuple[str, bool]]:
    values = {
        "schema": 1,
        "name": "x",
        "resources": {"gpu": "T4:1"},
        "params": {"which": "other", "n": 3},
        "launch": {"with": "each-node", "command": "true"},
        **sections,
    }
    recipe = Recipe.model_validate(values)
    found = local_file_issues(recipe, base, workdir_listing(recipe, base))
    return [(f"{'.'.join(map(str, issue.path))}: {issue.message}", issue.certain) for issue in found]


def command(text: str) -> dict:
    return {"launch": {"with": "each-node", "command": text}}


def script(text: str) -> dict:
    return {"launch": {"with": "each-node", "run": text}}


@pytest.mark.parametrize(
    "sections",
    [
        command("train.py --n {n}"),
        command("python -u ./train.py"),
        command("tools/run.sh"),
        command("linked/run.sh"),
        command("python /opt/there.py"),
        command("{data.a}/there.py"),
        command("python -m package.train"),
        command("caffe train --solver={which}.prototxt"),
        command("bash -c 'cd /opt/tool && python there.py'"),
        script("python train.py\n./tools/run.sh | tee log\npip install -r requirements.txt\necho no.py"),
        {"environment": {"python": {"requirements": ["torch", "-r requirements.txt", "-r=deep/more.txt"]}}},
    ],
)
def test_files_that_are_sent_or_not_of_the_work_directory_are_no_issue(base: Path, sections: dict) -> None:
    found = [message for message, certain in issues(base, **sections) if certain]
    assert found == []


MISSING = "nope.py does not exist in the work directory"


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        (command("nope.py"), "launch.command"),
        (command("torchrun --nproc_per_node {n} ./nope.py --x train.py"), "launch.command"),
        (command("python -u nope.py"), "launch.command"),
        (command("bash -c 'python nope.py'"), "launch.command"),
        (script("echo a\npython3 -u nope.py && echo b"), "launch.run"),
        (script("(./nope.py)"), "launch.run"),
        ({"setup": "python nope.py"}, "setup"),
    ],
)
def test_missing_programs_are_named(base: Path, sections: dict, field: str) -> None:
    ((message, certain),) = issues(base, **sections)
    assert message.replace("./", "") == f"{field}: {MISSING} {base.name}"
    assert certain


def test_misspelled_program_gets_a_suggestion(base: Path) -> None:
    assert issues(base, **command("trian.py")) == [
        (f'launch.command: trian.py does not exist in the work directory {base.name}; did you mean "train.py"?', True)
    ]


def test_a_parameter_can_be_the_program(base: Path) -> None:
    assert issues(base, **command("python {which}.py")) == [
        (f"launch.command: other.py does not exist in the work directory {base.name}", True)
    ]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (command("secret.py"), "launch.command: secret.py is not sent to the nodes: an ignore file excludes it"),
        (
            {"environment": {"python": {"requirements": ["a", "-r nope.txt"]}}},
            "environment.python.requirements.1: cannot read {base}/nope.txt: No such file or directory",
        ),
        (script("pip install -r nope.txt"), "launch.run: nope.txt does not exist in the work directory {base.name}"),
    ],
)
def test_other_reasons_are_named(base: Path, sections: dict, said: str) -> None:
    assert issues(base, **sections) == [(said.format(base=base), True)]


def test_a_program_of_a_recipe_without_work_directory_is_doubtful(base: Path) -> None:
    assert issues(base, **command("train.py"), workdir=None) == [
        ("launch.command: train.py does not exist: the recipe has no work directory", False)
    ]


@pytest.mark.parametrize(
    "sections",
    [
        {**command("nope.py"), "setup": "true"},
        script("git clone https://x/y\npython nope.py"),
        script("cd /opt\n./nope.py"),
        {"setup": "curl -O https://x/nope.py\npython nope.py"},
    ],
)
def test_a_file_that_the_run_may_create_is_not_certainly_missing(base: Path, sections: dict) -> None:
    assert [certain for _, certain in issues(base, **sections)] == [False]


RECIPE = """\
schema: 1
name: x
resources: {gpu: "T4:1"}
data:
  - {name: a, from: empty, to: /data/a}
launch:
  with: each-node
  command: train.py
rehearsal:
  command: small.py --out /tmp/there
  objects:
    s3://bucket/set/: hollow
"""


def test_recipe_check_reports_missing_files_with_their_lines(base: Path, capsys: pytest.CaptureFixture) -> None:
    (base / "recipe.yaml").write_text(RECIPE)
    for name in ("empty", "hollow/.git"):
        (base / name).mkdir(parents=True)
    assert main(["recipe", "check", "recipe.yaml"]) == 2
    assert capsys.readouterr().err.splitlines()[:4] == [
        "error: recipe.yaml has 3 problems",
        "  recipe.yaml:5: data[0].from: empty has no files to copy",
        f"  recipe.yaml:10: rehearsal.command: small.py does not exist in the work directory {base.name}",
        "  recipe.yaml:12: rehearsal.objects.s3://bucket/set/: hollow has no files to copy",
    ]


def test_recipe_check_accepts_a_recipe_with_warnings(base: Path, capsys: pytest.CaptureFixture) -> None:
    (base / "recipe.yaml").write_text(RECIPE)
    for name in ("empty/a", "hollow/a", "small.py"):
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text("x")
    assert main(["recipe", "check", "recipe.yaml"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "recipe.yaml: x is a valid recipe",
        "  warning: recipe.yaml:10: rehearsal.command: --out /tmp/there is outside the work directory, "
        "on a disk that is lost with the node",
    ]


def test_bundled_recipes_have_all_their_files() -> None:
    for path in sorted((Path(__file__).parents[4] / "recipes").glob("*/recipe.yaml")):
        assert file_problems(loader.load(path), {})[0] == [], path


def test_parameters_that_yaml_changes_are_named_unless_they_are_replaced(
    base: Path, capsys: pytest.CaptureFixture
) -> None:
    params = "params: {version: 3.10, steps: 1e3, rate: 0.1}\n"
    (base / "recipe.yaml").write_text(RECIPE[: RECIPE.index("data:")] + params + RECIPE[RECIPE.index("launch:") :])
    for name in ("hollow/a", "small.py"):
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text("x")
    assert main(["recipe", "check", "recipe.yaml"]) == 0
    said = capsys.readouterr().out
    assert 'params.version: YAML reads 3.10 as 3.1; to pass it as it is written, write "3.10" in quotes' in said
    assert "note: params.steps: YAML reads 1e3 as 1000.0" in said
    assert "params.rate" not in said
    assert main(["recipe", "check", "recipe.yaml", "--set", "version=3.11", "--set", "steps=9"]) == 0
    assert "YAML reads" not in capsys.readouterr().out
