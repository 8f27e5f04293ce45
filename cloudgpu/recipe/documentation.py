"""Generate the JSON Schema and the reference of the recipe format, and summarize recipes for listings."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cloudgpu.recipe.schema import Recipe, alternatives, section_within

_INTRODUCTION = """# The recipe file

A recipe describes a run. It is a directory with a `recipe.yaml`, or a single YAML file. Refer to a
recipe by its path, or just by its name if it is in `./recipes` or bundled with cloudgpu. Unknown
fields are errors. Sizes and durations require a unit (`300GiB`, `90s`, `8h`, `1h30m`). The units
for sizes are GiB, TiB, GB and TB, where 1 GB is 10^9 bytes. Amounts of money are in USD.

<!-- run -->
```
cloudgpu recipe check quickstart                # lists every problem with file, line and field
cloudgpu recipe show quickstart --set epochs=5  # shows the recipe as it would run
cloudgpu recipe schema                          # prints the JSON Schema, for editors
```

`--set name=value` changes a parameter; the value is converted to the type of the parameter's
default. `--set resources.nodes=4` changes a single field; separate the entries of a list with
commas (`--set resources.regions=us-east-1,us-west-2`), or add to the list
(`--set resources.regions+=us-west-2`). Setting `gpu`, `any_of` or `instance_type` removes the other
two fields. In a rehearsal, the `rehearsal` section is applied first, so `--set` overrides it.

`launch.command` is split into arguments before placeholders are substituted, so a value with spaces
stays one argument. No shell runs the command. Write `{{` and `}}` for literal braces.

To run several commands, write a shell script in `launch.run` instead:

```yaml
params: {epochs: 3}
launch:
  with: each-node
  run: |
    python prepare.py --to "$CLOUDGPU_OUTPUTS"
    python train.py --epochs "$CLOUDGPU_PARAM_EPOCHS"
```

bash runs the script as written and stops at the first command that fails. cloudgpu does not
substitute placeholders in a script, because the value of a parameter could then change the script's
syntax. The script gets the same values as environment variables:

| placeholder | variable |
|---|---|
| `{epochs}`, `{batch-size}` | `CLOUDGPU_PARAM_EPOCHS`, `CLOUDGPU_PARAM_BATCH_SIZE` |
| `{data.images}`, `{storage.scratch}` | `CLOUDGPU_DATA_IMAGES`, `CLOUDGPU_STORAGE_SCRATCH` |
| `{outputs}`, `{checkpoint}`, `{run}` | `CLOUDGPU_OUTPUTS`, `CLOUDGPU_CHECKPOINT`, `CLOUDGPU_RUN_ID` |
| `{node_rank}`, `{num_nodes}` | `CLOUDGPU_NODE_RANK`, `CLOUDGPU_NUM_NODES` |
| `{head_address}`, `{master_port}` | `MASTER_ADDR`, `MASTER_PORT` |
| `{hostfile}` | `CLOUDGPU_HOSTFILE` |
| `{service.port}`, `{service.address}` | `CLOUDGPU_SERVICE_PORT`, `CLOUDGPU_SERVICE_ADDRESS` |

With `environment.python`, `python` in the script is the run's Python.

`setup` is a shell script that runs once on every node to prepare it:

```yaml
environment:
  python: {requirements: [torch]}
setup: |
  pip install -r requirements.txt
  make -C kernels
```

The script runs in a copy of the work directory before the ranks start, with the variables and
secrets of `environment`. Every run gets the files and directories that the script creates, but not
its changes to existing files. Once the script has succeeded on a node, it does not run there again
until one of these changes: the script, `environment`, or a file or directory that the script
mentions (here, `requirements.txt` and `kernels`). With `environment.python`, `python` and `pip`
belong to a separate environment that is created for this setup. If the script fails, the run fails
and shows the last lines of the script's output.

With `environment.container`, the script runs in the image. The result is kept on the node as a
local image, and the ranks run in that image: see
[Containers](../guides/containers.md#setup-in-the-image).

## Variables and secrets

The following options of `train` and `plan` set variables for the ranks and for `setup` in a single
run:

<!-- run -->
```
cloudgpu train my-run --yes --env WANDB_NAME=first --env-file my.env
cloudgpu train my-run --yes --secret HF_TOKEN               # from your environment, or typed at a prompt
cloudgpu train my-run --yes --secret HF_TOKEN=@~/.hf-token  # from a file
```

`--env` overrides `--env-file`, and both override `environment.env`. `--secret` adds a name to
`environment.secrets`. The value is never stored in a recipe, a plan, a record or the ledger, and
never passed as a command-line argument. cloudgpu sends the value to the nodes over SSH, on standard
input. On a node, the value is in the memory of the agent and the ranks and, while the run is in
progress, in a file on tmpfs (`/dev/shm`, mode 0600). Secrets are masked in the output of the ranks
and of `setup`: asterisks replace each line of a secret if the line is at least 4 bytes long. A
secret without such a line is rejected. When the run finishes, cloudgpu also overwrites the secrets
in the logs on the nodes. It also masks the [usual encodings](../explanation/security.md#secrets) of
a secret, such as base64, but does not change files that the ranks write.

## Limits

A value that cannot work on any node, or that is outside any sensible range, is rejected when the
recipe is loaded. The message contains the line number.

| value | limit | reason |
|---|---|---|
| durations | `366d` | longer than any Capacity Block (at most half a year) |
| `disk`, and `size` of an `ebs` volume | `64TiB` | the largest gp3 volume |
| other sizes | `1024TiB` | larger than any Lustre file system that AWS provides without a contract |
| money | 1,000,000,000 USD | higher than the cost of any cluster |
| whole numbers | 2**53 | larger numbers lose precision in some JSON parsers |
| one argument, one `NAME=value` | 131,071 bytes | Linux (`MAX_ARG_STRLEN`) |
| a command with its environment | 1 MiB, or a quarter of `stack_mib` if less | Linux, minus a reserve for launchers |
| `env` with `mpirun` or `deepspeed` on several nodes | 96 KiB after quoting | passed in one `ssh` argument |

Text may not contain control characters (including NUL) or unpaired surrogates. Newlines and tabs
are allowed in commands, in the values of `env` and `params`, in patterns and in descriptions, but
not in names, paths and URLs. The values of `secrets` may contain any character except NUL and must
be UTF-8.

`recipes/quickstart/recipe.yaml` is a complete example.

This page is generated from the schema by `scripts/docs_recipe.py`; do not edit it by hand.
"""
_WORDS = {
    "int": "whole number",
    "float": "number",
    "Decimal": "number",
    "bool": "true or false",
    "SizeGib": "size",
    "DurationS": "duration",
    "PurePosixPath": "path",
}


@dataclass(frozen=True)
class Summary:
    """The summary of a recipe for a listing.

    Attributes:
        hardware: Nodes and hardware, such as `2 x p3dn.24xlarge` or `1 x V100-32GB:8 or A100:8`.
        software: Container image or Python packages; empty if the recipe sets neither.
        reference: Name, value and unit of the first metric with a reference; empty if there is none.
    """

    name: str
    description: str
    nodes: int
    hardware: str
    launcher: str
    software: str
    reference: str
    parameters: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {**vars(self), "parameters": list(self.parameters)}


def summary(recipe: Recipe) -> Summary:
    """Summarize a recipe."""
    resources = recipe.resources
    hardware = resources.instance_type or resources.gpu or " or ".join(resources.any_of)
    return Summary(
        name=recipe.name,
        description=recipe.description,
        nodes=resources.nodes,
        hardware=f"{resources.nodes} x {hardware}",
        launcher=recipe.launch.launcher,
        software=_software(recipe),
        reference=_reference(recipe),
        parameters=tuple(recipe.params),
    )


def _software(recipe: Recipe) -> str:
    environment = recipe.environment
    if environment.container is not None:
        return environment.container.image
    return " ".join(environment.python.requirements) if environment.python is not None else ""


def _reference(recipe: Recipe) -> str:
    for name, metric in recipe.metrics.items():
        if metric.reference is not None:
            return f"{name} {metric.reference.value:,g} {metric.unit}".rstrip()
    return ""


def schema() -> dict[str, Any]:
    """Return the JSON Schema of recipe files (draft 2020-12)."""
    generated = Recipe.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **generated}


def markdown() -> str:
    """Return the reference page."""
    return "\n".join([_INTRODUCTION, *_section(Recipe, "")]) + "\n"


def _section(section: type[BaseModel], path: str) -> Iterator[str]:
    """Yield a table of the section's fields, then its nested sections in schema order."""
    yield f"## `{path}`" if path else "## Top level"
    yield ""
    yield textwrap.fill(_first_line(section), 100, break_long_words=False, break_on_hyphens=False)
    yield ""
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    inner_sections: list[tuple[type[BaseModel], str]] = []
    for name, info in section.model_fields.items():
        written = info.alias or name
        yield f"| `{written}` | {_type(info)} | {_default(info)} | {_cell(info.description or '')} |"
        inner_section = section_within(info.annotation)
        if inner_section is not None:
            inner_sections.append((inner_section, f"{path}.{written}{_each(info)}".removeprefix(".")))
    yield ""
    for inner_section, inner_path in inner_sections:
        if inner_path != "rehearsal.environment":  # documented once, as the top-level `environment` section
            yield from _section(inner_section, inner_path)


def _each(info: FieldInfo) -> str:
    """Return the suffix that marks an entry of a list or mapping."""
    origins = {getattr(option, "__origin__", None) for option in alternatives(info.annotation)}
    return "[n]" if tuple in origins else ".NAME" if dict in origins else ""


def _first_line(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().splitlines()[0]


def _type(info: FieldInfo) -> str:
    words = [_word(option) for option in alternatives(info.annotation) if option is not type(None)]
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


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined or value in ((), {}, "") or isinstance(value, BaseModel):
        return ""
    return f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
