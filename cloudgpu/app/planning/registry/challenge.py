"""Parse the `WWW-Authenticate` header with which a registry requests a login."""

import re
from dataclasses import dataclass
from typing import Final

_SCHEME: Final = re.compile(
    r"(?:^|,)\s*(Bearer|Basic)\b([^,=]*=(?:\"[^\"]*\"|[^,\s]*)(?:\s*,\s*\w+=(?:\"[^\"]*\"|[^,\s]*))*)?", re.I
)
_PAIR: Final = re.compile(r"(\w+)=(?:\"([^\"]*)\"|([^,\s]*))")


@dataclass(frozen=True)
class Challenge:
    """A login request: `basic`, or `bearer` with the realm that issues tokens."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def challenge(header: str) -> Challenge | None:
    """Parse the header; prefer tokens to passwords. Return None if no scheme is supported."""
    supported = []
    for scheme, pairs in _SCHEME.findall(header):
        values = {key.lower(): quoted or bare for key, quoted, bare in _PAIR.findall(pairs)}
        offered = Challenge(scheme.lower(), values.get("realm", ""), values.get("service", ""), values.get("scope", ""))
        if offered.scheme == "basic" or offered.realm:
            supported.append(offered)
    return min(supported, key=lambda offered: offered.scheme != "bearer", default=None)
