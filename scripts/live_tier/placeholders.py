"""Recognize identifiers in text, and give each a placeholder of the same form."""

import ipaddress
import re
from collections.abc import Callable, Mapping

PATTERNS: Mapping[str, str] = {
    "arn": r"arn:aws[\w-]*:[\w-]*:[\w*-]*:[\w*-]*:[^\s\"'<>,;)}\]]+",
    "public_key": r"(?:ssh-(?:rsa|ed25519)|ecdsa-sha2-nistp\d+) +AAAA[A-Za-z0-9+/]{20,}={0,2}(?: +[\w.-]+@[\w.-]+)?",
    "fingerprint": r"\bSHA256:[A-Za-z0-9+/]{43}=?",
    "digest": r"\bsha256:[0-9a-f]{64}\b",
    "uuid": r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b",
    "fleet": r"\bfleet-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    "colon_digest": r"(?<![\w:])(?:[0-9a-fA-F]{2}:){15,31}[0-9a-fA-F]{2}(?![\w:])",
    "mac": r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])",
    "key_id": r"\b(?:AKIA|ASIA|AIDA|AROA|AGPA|ANPA|ANVA|AIPA|APKA|ASCA)[A-Z0-9]{12,}\b",
    "resource": r"\b[a-z]+(?:-[a-z]+)*-[0-9a-f]{17}\b|\b(?:i|vpc|subnet|sg|eni|vol|ami|snap|rtb|igw|acl|dopt|eipalloc"
    r"|eipassoc|rtbassoc|sgr|lt|fs|nat|vpce|cr|pl)-[0-9a-f]{8}\b",
    "dashed": r"\b(?:ip|ec2)-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}\b",
    "network": r"(?<![\d.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?:/\d{1,2})?(?![\d/]|\.\d)",
    "network6": r"(?<![\w:.])[0-9a-fA-F:]*:[0-9a-fA-F:]*:[0-9a-fA-F]*(?:/\d{1,3})?(?![\w:])",
    "account": r"(?<![0-9A-Za-z.])\d{12}(?![0-9A-Za-z])",
    "token": r"(?<![\w./+-])(?=[\w/+-]*[0-9])(?=[\w/+-]*[A-Z])[A-Za-z0-9_+-][A-Za-z0-9/_+-]{39,}={0,2}",
}
"""Kind -> pattern, in the order in which they are tried at each place of a text."""
PATTERN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in PATTERNS.items()))

_EXISTING: Mapping[str, re.Pattern[str]] = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "public_key": r"\S+ AAAA0{20,}\d+",
        "fingerprint": r"SHA256:0{20,}\d+",
        "uuid": r"00000000-0000-4000-8000-\d{12}",
        "fleet": r"fleet-00000000-0000-0000-\d{12}",
        "colon_digest": r"(00:){12,}[\d:]+",
        "mac": r"02:00:00:[\d:]+",
        "key_id": r"[A-Z]{4}0{6,}\d+",
        "resource": r".*-0{4,}\d+",
        "account": r"0{8}\d{4}",
        "token": r"token-\d+",
        "name": r"name-\d+",
    }.items()
}
"""Kind -> pattern of its placeholders, which are kept as they are."""

_BENCHMARK = ipaddress.IPv4Network("198.18.0.0/15")
"""Placeholders of addresses: the block for benchmarks (RFC 2544), which no network uses."""
_RESERVED = ipaddress.IPv4Network("240.0.0.0/4")
"""Placeholders of networks: the reserved block (RFC 1112), which no network uses."""
_DOCUMENTATION = ipaddress.IPv6Network("2001:db8::/32")
"""Placeholders of IPv6 addresses and networks: the block for documentation (RFC 3849)."""
_KEPT = (
    *(ipaddress.IPv4Network(text) for text in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16")),
    _BENCHMARK,
    _RESERVED,
)
_WIDEST_PREFIX = 8
"""Networks with a shorter prefix are kept, such as 0.0.0.0/0: they contain everybody's addresses."""


class Placeholders:
    """The placeholders that were given to values, so that the same value always gets the same one."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._reserved: set[str] = set()

    def reserve(self, text: str) -> None:
        """Note the placeholders in a text, so that they are not given to another value."""
        self._reserved.update(re.findall(r"\b(?:name|token)-\d+\b", text))
        for match in PATTERN.finditer(text):
            kind, found = match.lastgroup or "", match.group()
            for part in re.split(r"[/:]", found) if kind == "arn" else ():
                self.reserve(part)
            if _is_kept(kind, found):
                self._reserved.add(found)

    def of(self, kind: str, found: str) -> str:
        """Return the placeholder of a value of this kind, or the value itself if it identifies nothing."""
        if kind == "dashed":
            prefix, _, dashed = found.partition("-")
            return f"{prefix}-{self.of('network', dashed.replace('-', '.')).replace('.', '-')}"
        if _is_kept(kind, found):
            return found
        if kind == "network" and found.endswith("/32"):
            return self.of(kind, found.removesuffix("/32")) + "/32"
        key = (kind, found)
        while key not in self._given:
            made = _FORMS[kind](found, self._next(kind, found))
            if made not in self._reserved:
                self._given[key] = made
        return self._given[key]

    def _next(self, kind: str, found: str) -> int:
        """Return the next number for values of a kind, from 1; networks are numbered by their size."""
        counted = f"{kind}/{found.partition('/')[2]}" if kind.startswith("network") else kind
        self._counts[counted] = self._counts.get(counted, 0) + 1
        return self._counts[counted]


def _is_kept(kind: str, found: str) -> bool:
    if kind == "network":
        return _is_kept_network(found)
    if kind == "network6":
        return _is_kept_network6(found)
    return kind == "digest" or (kind in _EXISTING and bool(_EXISTING[kind].fullmatch(found)))


def _is_kept_network(text: str) -> bool:
    try:
        network = ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        return True  # a version number, such as 535.288.1.1
    return network.prefixlen < _WIDEST_PREFIX or any(network.subnet_of(kept) for kept in _KEPT)


def _is_kept_network6(text: str) -> bool:
    try:
        network = ipaddress.IPv6Network(text, strict=False)
    except ValueError:
        return True  # a time, such as 12:30:05
    address = network.network_address
    known = address.is_loopback or address.is_unspecified or address in _DOCUMENTATION
    return known or network.prefixlen < _WIDEST_PREFIX


def _network(text: str, number: int) -> str:
    network = ipaddress.IPv4Network(text, strict=False)
    slash = "".join(text.partition("/")[1:])
    base = _BENCHMARK if network.prefixlen == network.max_prefixlen else _RESERVED
    return f"{base.network_address + number * network.num_addresses % base.num_addresses}{slash}"


def _network6(text: str, number: int) -> str:
    network = ipaddress.IPv6Network(text, strict=False)
    slash = "".join(text.partition("/")[1:])
    return f"{_DOCUMENTATION.network_address + number * min(network.num_addresses, 1 << 80)}{slash}"


def _resource(found: str, number: int) -> str:
    prefix, _, digits = found.rpartition("-")
    return f"{prefix}-{number:0{len(digits)}d}"


def _colons(digits: str) -> str:
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))


_FORMS: Mapping[str, Callable[[str, int], str]] = {
    "public_key": lambda found, number: f"{found.split(' ', 1)[0]} AAAA{number:064d}",
    "fingerprint": lambda _, number: f"SHA256:{number:043d}",
    "uuid": lambda _, number: f"00000000-0000-4000-8000-{number:012d}",
    "fleet": lambda _, number: f"fleet-00000000-0000-0000-{number:012d}",
    "colon_digest": lambda found, number: _colons(f"{number:0{len(found.replace(':', ''))}d}"),
    "mac": lambda _, number: _colons(f"020000{number:06d}"),
    "key_id": lambda found, number: f"{found[:4]}{number:0{len(found) - 4}d}",
    "resource": _resource,
    "network": _network,
    "network6": _network6,
    "account": lambda _, number: f"{number:012d}",
    "token": lambda _, number: f"token-{number}",
    "name": lambda _, number: f"name-{number}",
}
"""Kind -> function that makes the placeholder of a value from the number of the value among its kind."""
