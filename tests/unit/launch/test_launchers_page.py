"""Every recipe in the launchers documentation is valid and can be launched."""

from pathlib import Path

import pytest
import yaml

from cloudgpu.launch.launchers import launch
from cloudgpu.recipe.loader import validate_recipe
from cloudgpu.recipe.text_rules import LAUNCHER_VARIABLES
from tests.documentation import blocks_for
from tests.unit.launch.test_every_launcher import CONTAINED
from tests.unit.launch.test_torchrun import nodes

PAGE = (Path(__file__).parents[3] / "docs/reference/launchers.md").read_text()
RECIPES = blocks_for(__file__, "docs/reference/launchers.md")


@pytest.mark.parametrize("text", RECIPES, ids=lambda text: text.split("name: ")[1].split()[0])
def test_documented_recipe_can_be_launched(text: str, tmp_path: Path) -> None:
    recipe, problems = validate_recipe(yaml.safe_load(text), tmp_path)
    assert recipe is not None, problems
    assert not problems
    gang = launch(recipe, nodes(recipe.resources.nodes), CONTAINED)
    assert [node.node_index for node in gang] == list(range(recipe.resources.nodes))
    assert gang[0].ranks


def test_launchers_page_lists_every_launcher_and_shared_variables() -> None:
    assert all(f"`{name}`" in PAGE for name in LAUNCHER_VARIABLES)
    shared = frozenset.intersection(*LAUNCHER_VARIABLES.values())
    assert all(f"`{name}`" in PAGE for name in shared | LAUNCHER_VARIABLES["kvstore"] - {"CLOUDGPU_ROLE"})
