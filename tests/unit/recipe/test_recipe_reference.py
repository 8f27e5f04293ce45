from pathlib import Path

from cloudgpu.recipe.documentation import markdown, schema
from cloudgpu.recipe.fields import names_at
from cloudgpu.recipe.schema import Recipe

ROOT = Path(__file__).parents[3]


def test_the_page_in_the_repository_is_the_generated_one():
    message = "run scripts/docs_recipe.py"
    assert (ROOT / "docs" / "reference" / "recipe.md").read_text(encoding="utf-8") == markdown(), message


def test_every_field_of_every_section_is_explained():
    undocumented = [
        f"{name}.{field}"
        for name, section in {**schema()["$defs"], "Recipe": schema()}.items()
        for field, described in section["properties"].items()
        if not described.get("description")
    ]
    assert undocumented == []


def test_the_schema_names_fields_as_they_are_written_and_allows_no_others():
    made = schema()
    assert set(made["properties"]) == set(names_at(()))
    assert "schema" in made["properties"]
    assert "from" in made["$defs"]["Data"]["properties"]
    assert all(section["additionalProperties"] is False for section in [made, *made["$defs"].values()])
    assert made["required"] == ["schema", "name", "resources", "launch"]
    assert Recipe.__name__ == made["title"]
