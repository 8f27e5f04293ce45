from pathlib import Path

from cloudgpu.recipe.documentation import markdown, schema
from cloudgpu.recipe.schema import Recipe, names_at

ROOT = Path(__file__).parents[3]


def test_recipe_reference_page_is_up_to_date():
    message = "run scripts/docs_recipe.py"
    assert (ROOT / "docs" / "reference" / "recipe.md").read_text(encoding="utf-8") == markdown(), message


def test_every_schema_field_has_a_description():
    undocumented = [
        f"{name}.{field}"
        for name, section in {**schema()["$defs"], "Recipe": schema()}.items()
        for field, described in section["properties"].items()
        if not described.get("description")
    ]
    assert undocumented == []


def test_schema_uses_documented_field_names_and_forbids_others():
    made = schema()
    assert set(made["properties"]) == set(names_at(()))
    assert "schema" in made["properties"]
    assert "from" in made["$defs"]["Data"]["properties"]
    assert all(section["additionalProperties"] is False for section in [made, *made["$defs"].values()])
    assert made["required"] == ["schema", "name", "resources", "launch"]
    assert Recipe.__name__ == made["title"]
