"""The user's own tags, which every new resource gets: the rules that all AWS services share, and precedence."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from cloudgpu.files import parse_json

Tags = Mapping[str, str]

MAX_TAGS: Final = 35
"""AWS allows 50 tags per resource. The rest is for the tags of cloudgpu, of AWS and of other tools."""
_RESERVED: Final = ("aws:", "cloudgpu:")
_SET_BY_CLOUDGPU: Final = "name"
# EC2 accepts more characters, but IAM, EFS, FSx and EventBridge Scheduler do not.
_KEY = re.compile(r"[\w .:/=+@-]{1,128}")
_VALUE = re.compile(r"[\w .:/=+@-]{0,256}")
_CHARACTERS: Final = "letters, digits, spaces and _ . : / = + - @"


def check_tags(tags: Tags) -> Tags:
    """Return the tags if every AWS service accepts them on every resource."""
    if len(tags) > MAX_TAGS:
        message = f"{len(tags)} tags: at most {MAX_TAGS} are possible in addition to those that cloudgpu sets"
        raise ValueError(message)
    seen: dict[str, str] = {}
    for key, value in tags.items():
        _check_key(key)
        if not _VALUE.fullmatch(value) or value != value.strip():
            message = f"tag {key!r}: a value has at most 256 characters: {_CHARACTERS}, with no space at either end"
            raise ValueError(message)
        same = seen.setdefault(key.casefold(), key)
        if same != key:
            message = f"tags {same!r} and {key!r} differ only in upper and lower case, which IAM does not distinguish"
            raise ValueError(message)
    return tags


def _check_key(key: str) -> None:
    reserved = next((prefix for prefix in _RESERVED if key.casefold().startswith(prefix)), "")
    if reserved or key.casefold() == _SET_BY_CLOUDGPU:
        message = f"tag {key!r}: {f'the prefix {reserved}' if reserved else 'this key'} is reserved"
        raise ValueError(message)
    if not _KEY.fullmatch(key) or key != key.strip():
        message = f"tag {key[:64]!r}: a key has 1 to 128 characters: {_CHARACTERS}, with no space at either end"
        raise ValueError(message)


def parse_tags(text: str) -> dict[str, str]:
    """Parse tags from a JSON object of texts; an empty text means no tags."""
    tags: Any = parse_json(text) if text else {}
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        message = "expected a JSON object whose values are texts"
        raise ValueError(message)
    return dict(check_tags(tags))


def tags_text(tags: Tags) -> str:
    """Return tags as a JSON object, in the order of their keys; empty if there are none."""
    return json.dumps(dict(tags), ensure_ascii=False, sort_keys=True) if tags else ""


def merge_tags(defaults: Tags, preferred: Tags) -> dict[str, str]:
    """Return both, without the defaults whose key is preferred, regardless of case."""
    preferred_keys = {key.casefold() for key in preferred}
    return {key: value for key, value in defaults.items() if key.casefold() not in preferred_keys} | dict(preferred)
