"""Convert security group rules from the nested forms of Pulumi and AWS to a flat form that can be compared."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_ANY = "-1"
_AWS_LISTS = {
    "cidr": ("IpRanges", "CidrIp"),
    "cidr6": ("Ipv6Ranges", "CidrIpv6"),
    "prefixes": ("PrefixListIds", "PrefixListId"),
    "group": ("UserIdGroupPairs", "GroupId"),
}
_PULUMI_LISTS = {
    "cidrBlocks": "cidr",
    "ipv6CidrBlocks": "cidr6",
    "prefixListIds": "prefixes",
    "securityGroups": "group",
}
RULE_KEYS = frozenset({*_PULUMI_LISTS, "protocol", "fromPort", "toPort", "self", "description"})


@dataclass(frozen=True, order=True)
class PortRule:
    """A security group rule for one peer and one port range.

    AWS treats two rules that differ only in `description` as identical.
    """

    protocol: str
    from_port: int
    to_port: int
    kind: str
    peer: str
    description: str = ""

    @property
    def key(self) -> tuple[str, int, int, str, str]:
        """The fields by which AWS identifies the rule: all except `description`."""
        return (self.protocol, self.from_port, self.to_port, self.kind, self.peer)

    def shown(self, preposition: str) -> str:
        """Return the rule as text for messages, such as `tcp 22 from 0.0.0.0/0`."""
        if self.protocol == _ANY:
            return f"all traffic {preposition} {self.peer}"
        ports = str(self.from_port) if self.from_port == self.to_port else f"{self.from_port}-{self.to_port}"
        return f"{self.protocol} {ports} {preposition} {self.peer}"

    def permission(self) -> dict[str, Any]:
        """Return the rule as an entry of `IpPermissions`."""
        plural, singular = _AWS_LISTS[self.kind]
        peer = {singular: self.peer}
        if self.description:
            peer["Description"] = self.description
        permission: dict[str, Any] = {"IpProtocol": self.protocol, plural: [peer]}
        if self.protocol != _ANY:
            permission |= {"FromPort": self.from_port, "ToPort": self.to_port}
        return permission


def parse_pulumi_rules(rules: Iterable[Mapping[str, Any]] | None, group_id: str) -> frozenset[PortRule]:
    """Convert rules from Pulumi's form, replacing `self` with the ID of the group."""
    return frozenset(rule for rule_set in rules or () for rule in _from_pulumi(rule_set, group_id))


def parse_aws_rules(permissions: Iterable[Mapping[str, Any]]) -> frozenset[PortRule]:
    """Convert rules from AWS's form."""
    return frozenset(rule for permission in permissions for rule in _from_aws(permission))


def to_pulumi_rules(permissions: Iterable[Mapping[str, Any]], group_id: str) -> list[dict[str, Any]]:
    """Convert rules from AWS's form to Pulumi's form: one entry per port range and description, in a fixed order."""
    grouped: dict[tuple[str, int, int, str], dict[str, Any]] = {}
    for rule in sorted(parse_aws_rules(permissions)):
        head = (rule.protocol, rule.from_port, rule.to_port, rule.description)
        _show(grouped.setdefault(head, _empty(rule)), rule, group_id)
    return [grouped[head] for head in sorted(grouped)]


def _empty(rule: PortRule) -> dict[str, Any]:
    ports = (0, 0) if rule.protocol == _ANY else (rule.from_port, rule.to_port)
    peers: dict[str, list[str]] = {key: [] for key in _PULUMI_LISTS}
    rest = {"protocol": rule.protocol, "fromPort": ports[0], "toPort": ports[1], "description": rule.description}
    return {**peers, **rest, "self": False}


def _show(entry: dict[str, Any], rule: PortRule, group_id: str) -> None:
    if (rule.kind, rule.peer) == ("group", group_id):
        entry["self"] = True
    else:
        entry[next(key for key, kind in _PULUMI_LISTS.items() if kind == rule.kind)].append(rule.peer)


def _from_pulumi(row: Mapping[str, Any], group_id: str) -> Iterator[PortRule]:
    protocol = _protocol(str(row["protocol"]))
    ports = (-1, -1) if protocol == _ANY else (int(row["fromPort"]), int(row["toPort"]))
    text = row.get("description") or ""
    for key, kind in _PULUMI_LISTS.items():
        for peer in row.get(key) or ():
            yield PortRule(protocol, *ports, kind, peer, text)
    if row.get("self"):
        yield PortRule(protocol, *ports, "group", group_id, text)


def _from_aws(row: Mapping[str, Any]) -> Iterator[PortRule]:
    protocol = str(row["IpProtocol"])
    ports = (-1, -1) if protocol == _ANY else (int(row.get("FromPort", -1)), int(row.get("ToPort", -1)))
    for kind, (plural, singular) in _AWS_LISTS.items():
        for peer in row.get(plural) or ():
            yield PortRule(protocol, *ports, kind, peer[singular], peer.get("Description", ""))


def _protocol(text: str) -> str:
    """Return the name of a protocol. AWS also accepts the numbers of some protocols, but always returns their names."""
    return {"all": _ANY, "6": "tcp", "17": "udp", "1": "icmp"}.get(text.lower(), text.lower())
