"""Paths with which a recipe could make cloudgpu upload files from outside the recipe's folder."""

from pathlib import Path

import pytest

from cloudgpu.cli.main import main
from cloudgpu.errors import RecipeError
from cloudgpu.recipe import loader
from cloudgpu.recipe.loader import resolve
from cloudgpu.recipe.local_files import EVERYWHERE

RECIPE = """\
schema: 1
name: stranger
resources: {gpu: "T4:1"}
launch: {with: each-node, command: "true"}
"""
FIELDS = {
    "workdir": "workdir: PLACE\n",
    "data[0].from": "data: [{name: a, from: PLACE, to: /data/a}]\n",
    "data[0].manifest": "data: [{name: a, from: here, to: /data/a, manifest: PLACE}]\n",
    "rehearsal.objects.s3://bucket/set/": (
        "data: [{name: a, from: s3://bucket/set/, to: /data/a}]\nrehearsal: {objects: {s3://bucket/set/: PLACE}}\n"
    ),
}


@pytest.fixture(name="recipe")
def _recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe beside a home directory with credentials, a link to them, and a file of its own."""
    for name in ("home/.aws/credentials", "project/here/x"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("secret")
    (tmp_path / "project" / "link").symlink_to("../home/.aws")
    (tmp_path / "project" / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "state"))
    return tmp_path / "project" / "recipe.yaml"


def load(recipe: Path, field: str, place: str, allowed: tuple[Path, ...] = ()) -> loader.LoadedRecipe:
    recipe.write_text(RECIPE + FIELDS[field].replace("PLACE", place))
    return loader.load(recipe, allowed=allowed)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "place", ["../home/.aws", "link", "link/credentials", "here/../../home", "/etc/passwd", "loop"]
)
def test_paths_outside_the_folder_of_a_recipe_are_rejected(recipe: Path, field: str, place: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(recipe, field, place)
    assert [line for line in caught.value.problems if f"{field}: {place} is outside the recipe's folder" in line]
    assert "--allow-outside" in caught.value.hint


@pytest.mark.parametrize("field", FIELDS)
def test_paths_outside_the_folder_can_be_allowed(recipe: Path, field: str) -> None:
    place = recipe.parent.parent / "home" / ".aws"
    for allowed in (EVERYWHERE, (place,), (place.parent,)):
        loaded = load(recipe, field, "../home/.aws", allowed)
        assert resolve(loaded, sets={}, rehearsal=True).name == "stranger"
    with pytest.raises(RecipeError):
        load(recipe, field, "../home/.aws", (place / "credentials",))


@pytest.mark.parametrize("field", FIELDS)
def test_paths_inside_the_folder_need_no_permission(recipe: Path, field: str) -> None:
    (recipe.parent / "inner").symlink_to("here")
    for place in ("here", "./here/", "inner", str(recipe.parent / "here")):
        load(recipe, field, place)


def test_assignments_cannot_leave_the_folder_either(recipe: Path) -> None:
    loaded = load(recipe, "workdir", "here")
    with pytest.raises(RecipeError, match="invalid") as caught:
        resolve(loaded, sets={"workdir": "../home"}, rehearsal=False)
    assert "--allow-outside" in caught.value.hint


REQUIREMENTS = "environment: {python: {requirements: ['-r ../home/.aws/credentials']}}\n"


@pytest.mark.parametrize("text", [FIELDS["workdir"].replace("PLACE", "../home/.aws"), REQUIREMENTS])
def test_commands_reject_outside_paths_until_the_user_allows_them(
    recipe: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    recipe.write_text(RECIPE + text)
    commands = (["recipe", "check"], ["plan", "--offline"])
    for words in commands:
        assert main([*words, str(recipe)]) in (2, 7)
        said = " ".join("".join(capsys.readouterr()).split())
        assert "outside the recipe's folder" in said
        assert "--allow-outside" in said
        assert "secret" not in said.replace("secret-", "")
    for words in commands:
        assert main([*words, str(recipe), "--allow-outside"]) == 0
    monkeypatch.setenv("CLOUDGPU_ALLOWED_PATHS", f"/nowhere:{recipe.parent.parent}/home")
    for words in commands:
        assert main([*words, str(recipe)]) == 0


def test_bundled_recipes_may_use_each_other() -> None:
    bundled = Path(__file__).parents[3] / "recipes"
    assert loader.load(bundled / "fastai-resnet50" / "recipe.yaml").recipe.workdir is not None
