"""What holds for every folder in recipes/: it checks, it says what it is, and it plans on its best target."""

import json
import re
from pathlib import Path

import pytest

from cloudgpu.cli.main import main
from cloudgpu.recipe.loading import loader
from cloudgpu.recipe.loading.resolve import resolve

RECIPES = Path(__file__).parents[3] / "recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/recipe.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_it_checks_also_as_it_is_rehearsed(name: str) -> None:
    loaded = loader.load(RECIPES / name / "recipe.yaml")
    assert loaded.recipe.name == name
    assert loaded.recipe.description.endswith(".")
    assert loaded.recipe.budget.max_usd
    assert loaded.recipe.outputs
    resolve(loaded, sets={}, rehearsal=True)


@pytest.mark.parametrize("name", NAMES)
def test_it_plans_offline_on_its_best_target(name: str, home, monkeypatch, capsys) -> None:
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
def test_its_page_says_where_it_comes_from(name: str) -> None:
    page = (RECIPES / name / "README.md").read_text()
    assert page.startswith(f"# {name}\n\n")
    recipe = loader.load(RECIPES / name / "recipe.yaml").recipe
    referenced = any(metric.reference for metric in recipe.metrics.values())
    # One that has nothing to be compared with says so.
    assert referenced or re.search(r"\breference\b", page, re.IGNORECASE)


def test_the_table_of_recipes_has_every_one() -> None:
    listed = re.findall(r"^\| \[([\w-]+)\]\(", (RECIPES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == NAMES
