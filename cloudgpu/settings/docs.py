"""Render `docs/reference/settings.md` from the list of settings."""

from dataclasses import Field
from typing import Any

from cloudgpu.settings.fields import FIELDS, env_name

_HEAD = """\
<!-- Generated from cloudgpu/settings/fields.py by scripts/docs.py; edit the fields there. -->
# Settings

cloudgpu takes each setting from the first of these sources that contains it:

1. a command-line flag
2. an environment variable; an empty variable is ignored
3. `cloudgpu.toml` in the working directory, or else in the nearest parent directory that has one
4. `config.toml` in cloudgpu's configuration directory (`~/.config/cloudgpu` on Linux)
5. for `region`, unless the target is a rehearsal: `AWS_REGION`, `AWS_DEFAULT_REGION`, then the
   region of the AWS profile
6. the default

`cloudgpu config` shows the value and source of every setting; passwords are masked. Relative paths
in a settings file are resolved against its directory; all others, against the working directory.

```toml
# cloudgpu.toml
owner = "ann"
team = "vision"
region = "us-west-2"
```

An unknown setting in a file is an error, and the hint suggests the closest valid name. Numbers may
contain only the digits 0 to 9, and values must not contain control characters.

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
