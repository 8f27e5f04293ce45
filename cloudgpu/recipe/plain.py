"""A recipe back to plain values and to YAML, with the names it is written with and nothing that is a default."""

import io
from typing import Any

from ruamel.yaml import YAML

from cloudgpu.recipe.schema import Recipe


def plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as `check` reads it; fields that have their default are left out."""
    values = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"schema": recipe.schema_version, **values}


def as_yaml(recipe: Recipe) -> str:
    """The recipe as a file that loads to an equal one."""
    yaml = YAML(typ="rt")
    yaml.width = 10_000  # commands stay on one line, as they are copied from here
    yaml.default_flow_style = False
    yaml.indent(mapping=2, sequence=4, offset=2)
    values, text = plain(recipe), io.StringIO()
    if recipe.budget.max_usd is not None:
        usd = recipe.budget.max_usd
        values["budget"]["max_usd"] = int(usd) if usd == int(usd) else float(usd)  # reads better than quoted text
    yaml.dump(values, text)
    return text.getvalue()
