"""Every recipe in recipes/ is valid, documented and can be planned offline on AWS."""

import json
import re
from pathlib import Path

import pytest

from cloudgpu.cli.main import main
from cloudgpu.recipe import loader
from cloudgpu.recipe.loader import resolve

RECIPES = Path(__file__).parents[3] / "recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/recipe.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_valid_with_and_without_rehearsal(name: str) -> None:
    loaded = loader.load(RECIPES / name / "recipe.yaml")
    assert loaded.recipe.name == name
    assert loaded.recipe.description.endswith(".")
    assert loaded.recipe.budget.max_usd
    assert loaded.recipe.outputs
    resolve(loaded, sets={}, rehearsal=True)


@pytest.mark.parametrize("name", NAMES)
def test_recipe_plans_offline_without_errors(name: str, home, monkeypatch, capsys) -> None:
    wanted = resolve(loader.load(RECIPES / name / "recipe.yaml"), sets={}, rehearsal=False).environment
    container = wanted.container
    for variable in (*wanted.secrets, *([container.password] if container and container.password else [])):
        monkeypatch.setenv(variable, "x")
    code = main(["plan", str(RECIPES / name), "--on", "aws", "--offline", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == 0, told
    assert [one for one in told["findings"] if one["severity"] == "error"] == []
    assert told["candidates"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "quickstart"])
def test_recipe_metric_or_readme_gives_a_reference(name: str) -> None:
    page = (RECIPES / name / "README.md").read_text()
    assert page.startswith(f"# {name}\n\n")
    recipe = loader.load(RECIPES / name / "recipe.yaml").recipe
    referenced = any(metric.reference for metric in recipe.metrics.values())
    # One that has nothing to be compared with says so.
    assert referenced or re.search(r"\breference\b", page, re.IGNORECASE)


def test_recipes_table_lists_every_recipe() -> None:
    listed = re.findall(r"^\| \[([\w-]+)\]\(", (RECIPES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == NAMES
