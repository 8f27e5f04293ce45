"""Render `docs/reference/settings.md` from the fields."""

from dataclasses import Field
from typing import Any

from cloudgpu.settings.fields import FIELDS, env_name

_HEAD = """\
<!-- Generated from cloudgpu/settings/fields.py by scripts/docs.py; edit the fields there. -->
# Settings

Strongest first: a flag of the command, an environment variable, `cloudgpu.toml` in the working
directory or the nearest folder above it, `config.toml` in the folder `cloudgpu` of the platform's
configuration directory, the default. `cloudgpu config` shows every setting with its value and where
it came from; passwords are masked. An empty environment variable counts as not set. Relative paths
start from the working directory; in a file, from the file's own folder.

```toml
# cloudgpu.toml
owner = "ann"
team = "vision"
region = "us-west-2"
```

An unknown name in a file is an error that names the nearest valid one. Numbers are written in the
digits 0 to 9; no value may hold a control character.

| setting | environment variable | default | what it is |
|---|---|---|---|
"""


def settings_docs() -> str:
    """Return the text of `docs/reference/settings.md`, generated from the fields."""
    rows = [_row(spec) for spec in FIELDS.values()]
    return _HEAD + "\n".join(rows) + "\n"


def _row(spec: Field[Any]) -> str:
    meta = spec.metadata
    default = meta["shown_default"] or (f"`{meta['default']}`" if meta["default"] else "none")
    like = f" For instance `{meta['like']}`." if meta["like"] and not meta["default"] else ""
    return f"| `{spec.name}` | `{env_name(spec.name)}` | {default} | {meta['doc']}{like} |"
