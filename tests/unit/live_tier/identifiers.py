"""Search a text for identifiers of a real account, written independently of the scrubber."""

import ipaddress
import re

_ACCOUNT = re.compile(r"(?<![0-9A-Za-z])(?!0{8})[0-9]{12}(?![0-9A-Za-z])")
_RESOURCE = re.compile(
    r"(?<![\w-])(?:i|vpc|subnet|sg|eni|vol|ami|snap|rtb|igw|lt|r|cr|fs)-(?!0{4})(?:[0-9a-f]{17}|[0-9a-f]{8})(?![\w-])"
)
_KEY = re.compile(r"\b(?:AKIA|ASIA|AIDA|AROA)(?!0{6})[A-Z0-9]{16}\b")
_BASE64_KEY = re.compile(
    r"AAAA(?!0{20})[A-Za-z0-9+/]{60,}|SHA256:(?!0{20})[A-Za-z0-9+/]{43}|-----BEGIN [A-Z ]*PRIVATE KEY"
)
_ADDRESS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d]|\.\d)(?!/[0-7]\b)")
_HARMLESS = [
    ipaddress.ip_network(text)
    for text in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "198.18.0.0/15", "240.0.0.0/4")
]


def leftovers(text: str) -> list[str]:
    """Return what a scrubbed text must not contain, in the order of kinds."""
    found = [match.group() for pattern in (_ACCOUNT, _RESOURCE, _KEY, _BASE64_KEY) for match in pattern.finditer(text)]
    return found + [match.group() for match in _ADDRESS.finditer(text) if _identifies(match.group())]


def _identifies(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not any(address in network for network in _HARMLESS)
