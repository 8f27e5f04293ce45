"""Render `docs/reference/settings.md` from the list of settings."""

from dataclasses import Field
from typing import Any

from cloudgpu.settings.fields import FIELDS, env_name

_HEAD = """\
<!-- Generated from cloudgpu/settings/fields.py by scripts/docs.py; edit the fields there. -->
# Settings

In order of precedence: a flag of the command, an environment variable, `cloudgpu.toml` in the
working directory or the nearest folder above it, `config.toml` in the folder `cloudgpu` of the
platform's configuration directory, the default. `cloudgpu config` shows every setting with its
value and its source; passwords are masked. An empty environment variable counts as not set.
Relative paths start from the working directory; in a file, from the folder of that file.

```toml
# cloudgpu.toml
owner = "ann"
team = "vision"
region = "us-west-2"
```

An unknown name in a file is an error that suggests the closest valid name. Numbers consist of the
digits 0 to 9; values must not contain control characters.

| setting | environment variable | default | description |
|---|---|---|---|
"""


def settings_docs() -> str:
    """Return the content of `docs/reference/settings.md`."""
    rows = [_row(setting) for setting in FIELDS.values()]
    return _HEAD + "\n".join(rows) + "\n"


def _row(setting: Field[Any]) -> str:
    meta = setting.metadata
    default = meta["shown_default"] or (f"`{meta['default']}`" if meta["default"] else "none")
    like = f" For example `{meta['like']}`." if meta["like"] and not meta["default"] else ""
    return f"| `{setting.name}` | `{env_name(setting.name)}` | {default} | {meta['doc']}{like} |"
