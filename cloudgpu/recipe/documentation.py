"""The recipe format for editors (JSON Schema) and for people (markdown), both made from the schema itself."""

import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cloudgpu.recipe.fields import options, section_within
from cloudgpu.recipe.schema import Recipe

_INTRODUCTION = """# The recipe file

A recipe is a folder with a `recipe.yaml`, or one YAML file, named by its path or, below `recipes/`,
by its bare name. It says what a run is; nothing in it says who runs it. Unknown fields are errors.
Sizes and durations carry their unit (`300GiB`, `90s`, `8h`, `1h30m`), money is USD.

```
cloudgpu recipe check NAME            # every problem at once, with file, line and field
cloudgpu recipe show NAME --set a=b   # as it would run
cloudgpu recipe schema                # JSON Schema, for editors
```

`--set name=value` changes a parameter, typed as its default; `--set resources.nodes=4` changes any
single field, and lists of text are separated by commas
(`--set resources.regions=us-east-1,us-west-2`). Naming hardware with `--set` replaces however the
recipe named it. On rehearsal the `rehearsal` section is laid over the recipe first, so what you set
wins over it.

The command is split into arguments first and filled afterwards: a value with spaces stays one
argument, and no shell is involved. `{{` and `}}` stand for braces.

## Limits

A value that no node could be given, or that nobody can mean, is refused when the recipe is loaded,
with its line.

| value | limit | why |
|---|---|---|
| durations | `366d` | AWS sells nothing longer in one piece; a Capacity Block ends after half a year |
| `disk`, and `size` of an `ebs` volume | `64TiB` | the largest gp3 volume |
| other sizes | `1024TiB` | above every Lustre file system that AWS grants without a contract |
| money | 1,000,000,000 USD | more than any cluster costs |
| whole numbers | 2**53 | every JSON reader keeps them exact |
| one argument, one `NAME=value` | 131,071 bytes | Linux (`MAX_ARG_STRLEN`) |
| a command with its environment | 1 MiB; a quarter of `stack_mib`, if less | Linux, and room for launchers |
| `env` with `mpirun` or `deepspeed` on several nodes | 96 KiB, quoted | they export it in one argument of `ssh` |

No text may hold a NUL character, another control character or half of a surrogate pair. Newlines
and tabs are allowed in commands, in the values of `env` and `params`, in patterns and in prose, not
in names, paths and addresses. The values of `secrets` may hold any character but NUL; they must be
UTF-8.

`recipes/quickstart/recipe.yaml` is a whole example.

This page is made from the schema by `scripts/docs_recipe.py`; do not edit it by hand.
"""


def schema() -> dict[str, Any]:
    """The JSON Schema of recipe files (draft 2020-12)."""
    made = Recipe.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def markdown() -> str:
    """The whole reference page."""
    return "\n".join([_INTRODUCTION, *_section(Recipe, "")]) + "\n"


def _section(section: type[BaseModel], path: str) -> Iterator[str]:
    """One table a section, then the sections inside it, in the order of the schema."""
    yield f"## `{path}`" if path else "## Top level"
    yield ""
    yield textwrap.fill(_first_line(section), 100, break_long_words=False, break_on_hyphens=False)
    yield ""
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    inner: list[tuple[type[BaseModel], str]] = []
    for name, info in section.model_fields.items():
        written = info.alias or name
        yield f"| `{written}` | {_kind(info)} | {_default(info)} | {_cell(info.description or '')} |"
        found = section_within(info.annotation)
        if found is not None:
            inner.append((found, f"{path}.{written}{_each(info)}".removeprefix(".")))
    yield ""
    for found, where in inner:
        if where != "rehearsal.environment":  # the same section as the recipe's own
            yield from _section(found, where)


def _each(info: FieldInfo) -> str:
    """How one entry of a list or mapping is written after the field's name."""
    origins = {getattr(option, "__origin__", None) for option in options(info.annotation)}
    return "[n]" if tuple in origins else ".NAME" if dict in origins else ""


def _first_line(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().splitlines()[0]


def _kind(info: FieldInfo) -> str:
    words = [_word(option) for option in options(info.annotation) if option is not type(None)]
    return _cell(" or ".join(dict.fromkeys(words)))


def _word(option: Any) -> str:  # noqa: ANN401 - any annotation
    origin, arguments = getattr(option, "__origin__", None), getattr(option, "__args__", ())
    if origin is tuple:
        return "list of sections" if section_within(option) else "list of text"
    if origin is dict:
        return "name: section" if section_within(option) else "name: value"
    if arguments:
        return " or ".join(f"`{choice}`" for choice in arguments)
    return "section" if section_within(option) else _WORDS.get(option.__name__, "text")


_WORDS = {
    "int": "whole number",
    "float": "number",
    "Decimal": "number",
    "bool": "true or false",
    "SizeGib": "size",
    "DurationS": "duration",
    "PurePosixPath": "path",
}


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined or value in ((), {}, "") or isinstance(value, BaseModel):
        return ""
    return f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
