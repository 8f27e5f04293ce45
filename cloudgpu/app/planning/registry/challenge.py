"""How a registry asks for a login: the header `WWW-Authenticate`."""

import re
from dataclasses import dataclass
from typing import Final

_SCHEME: Final = re.compile(
    r"(?:^|,)\s*(Bearer|Basic)\b([^,=]*=(?:\"[^\"]*\"|[^,\s]*)(?:\s*,\s*\w+=(?:\"[^\"]*\"|[^,\s]*))*)?", re.I
)
_PAIR: Final = re.compile(r"(\w+)=(?:\"([^\"]*)\"|([^,\s]*))")


@dataclass(frozen=True)
class Challenge:
    """`basic`, or `bearer` with the place that gives tokens."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def challenge(header: str) -> Challenge | None:
    """Read it; tokens are taken before passwords, and None is a way that is not known."""
    found = []
    for scheme, pairs in _SCHEME.findall(header):
        values = {key.lower(): quoted or bare for key, quoted, bare in _PAIR.findall(pairs)}
        one = Challenge(scheme.lower(), values.get("realm", ""), values.get("service", ""), values.get("scope", ""))
        if one.scheme == "basic" or one.realm:
            found.append(one)
    return min(found, key=lambda one: one.scheme != "bearer", default=None)
