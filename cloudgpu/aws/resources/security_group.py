"""Handler for `aws:ec2/securityGroup:SecurityGroup`, and the comparison of its rules with those of Pulumi and AWS."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import retag, tag_specification, tags_to_dict
from cloudgpu.aws.resources.handler import (
    DescribedHandler,
    ExistingResource,
    HandlerContext,
    Properties,
    all_tags,
    changed_tags,
    complete_interrupted,
    delete_when_unused,
    is_ours,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors, is_gone
from cloudgpu.aws.session.eventual_consistency import retry
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudError, CloudGpuError

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
_RELEASE_S = 600
"""Maximum number of seconds for which the network interfaces of terminated instances may still use a group."""
_APPEAR_S = 30


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


class SecurityGroupHandler(DescribedHandler):
    """Handler for security groups. A group has exactly the requested rules. AWS's default egress rule is removed."""

    type: ClassVar[str] = "aws:ec2/securityGroup:SecurityGroup"
    accepts = frozenset({"name", "description", "vpcId", "ingress", "egress", "revokeRulesOnDelete"})
    requires = frozenset({"name"})
    defaults: ClassVar[Properties] = {"description": "Managed by Pulumi", "revokeRulesOnDelete": False}
    replaced_by = frozenset({"name", "description", "vpcId"})
    nested: ClassVar[dict[str, frozenset[str]]] = {"ingress": RULE_KEYS, "egress": RULE_KEYS}

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the group and set its rules."""
        request = {
            "GroupName": inputs["name"],
            "Description": inputs["description"],
            "TagSpecifications": [tag_specification("security-group", all_tags(ctx, inputs))],
        }
        if inputs.get("vpcId"):
            request["VpcId"] = inputs["vpcId"]
        with convert_errors(f"creating security group {inputs['name']}"):
            group_id = ctx.clients.client("ec2").create_security_group(**request)["GroupId"]
        return self._settled(ctx, group_id, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Find the group left behind by an interrupted `create` with this token, and set its rules.

        Return None if there is no such group.
        """
        filters = [{"Name": "group-name", "Values": [inputs["name"]]}]
        if inputs.get("vpcId"):
            filters.append({"Name": "vpc-id", "Values": [inputs["vpcId"]]})
        with convert_errors(f"looking for security group {inputs['name']}"):
            groups = ctx.clients.client("ec2").describe_security_groups(Filters=filters)["SecurityGroups"]
        ours = [group for group in groups if is_ours(ctx, tags_to_dict(group.get("Tags")))]
        if not ours:
            return None
        group_id = ours[0]["GroupId"]
        region = ctx.clients.region
        return complete_interrupted(
            lambda: self._settled(ctx, group_id, inputs),
            lambda: _physical(_required(ctx.clients, group_id), inputs, region),
        )

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the group does not exist."""
        group = _described(ctx.clients, physical_id)
        return _physical(group, {"tags": tags_to_dict(group.get("Tags"))}, ctx.clients.region) if group else None

    def drift(self, ctx: HandlerContext, physical_id: str, inputs: Properties) -> tuple[str, ...]:
        """Return one line for each rule added or removed outside of cloudgpu, ignoring changes to rule descriptions."""
        group = _required(ctx.clients, physical_id)
        sides = (("from", "ingress", "IpPermissions"), ("to", "egress", "IpPermissionsEgress"))
        return tuple(
            f"security group {physical_id}: {difference}"
            for preposition, key, described in sides
            for difference in _differences(
                parse_pulumi_rules(inputs.get(key), physical_id), parse_aws_rules(group[described]), preposition
            )
        )

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the rules and tags. Unchanged rules stay in place throughout."""
        retag(ctx.clients, physical_id, changed_tags(ctx, old), changed_tags(ctx, new))
        return self._settled(ctx, physical_id, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the group once no interface uses it."""

        def attempt() -> None:
            with convert_errors(f"deleting security group {physical_id}"):
                ctx.clients.client("ec2").delete_security_group(GroupId=physical_id)

        delete_when_unused(ctx, attempt, _RELEASE_S)

    def _settled(self, ctx: HandlerContext, group_id: str, inputs: Properties) -> ExistingResource:
        """Make the rules match the inputs, whatever state an interrupted attempt left the group in."""
        # A new group may not be visible to every AWS server yet.
        group = retry(ctx.clock, lambda: _required(ctx.clients, group_id), when=is_gone, total_s=_APPEAR_S)
        ec2 = ctx.clients.client("ec2")
        ingress = parse_pulumi_rules(inputs.get("ingress"), group_id), parse_aws_rules(group["IpPermissions"])
        egress = parse_pulumi_rules(inputs.get("egress"), group_id), parse_aws_rules(group["IpPermissionsEgress"])
        with convert_errors(f"setting the rules of security group {group_id}"):
            _change(*ingress, group_id, _Side(ec2, "ingress"))
            _change(*egress, group_id, _Side(ec2, "egress"))
        return _physical(_required(ctx.clients, group_id), inputs, ctx.clients.region)


class _Side:
    """EC2 calls that change the rules for one direction, ingress or egress."""

    def __init__(self, ec2: Any, direction: str) -> None:  # noqa: ANN401
        self.authorize: Callable[..., Any] = getattr(ec2, f"authorize_security_group_{direction}")
        self.revoke: Callable[..., Any] = getattr(ec2, f"revoke_security_group_{direction}")
        self.describe: Callable[..., Any] = getattr(ec2, f"update_security_group_rule_descriptions_{direction}")


def _change(requested: frozenset[PortRule], existing: frozenset[PortRule], group_id: str, side: _Side) -> None:
    """Add missing rules before removing extra rules, so that traffic that remains allowed is never interrupted."""
    requested_keys, existing_keys = {rule.key for rule in requested}, {rule.key for rule in existing}
    missing = sorted(rule for rule in requested if rule.key not in existing_keys)
    redescribed = sorted(rule for rule in requested - existing if rule.key in existing_keys)
    extra = sorted(rule for rule in existing if rule.key not in requested_keys)
    for call, rules in ((side.authorize, missing), (side.describe, redescribed), (side.revoke, extra)):
        if rules:
            call(GroupId=group_id, IpPermissions=[rule.permission() for rule in rules])


def _differences(requested: frozenset[PortRule], existing: frozenset[PortRule], preposition: str) -> list[str]:
    requested_keys, existing_keys = {rule.key for rule in requested}, {rule.key for rule in existing}
    added = [rule for rule in sorted(existing) if rule.key not in requested_keys]
    removed = [rule for rule in sorted(requested) if rule.key not in existing_keys]
    return [
        *(f"an extra rule allowed {rule.shown(preposition)}" for rule in added),
        *(f"the rule that allows {rule.shown(preposition)} was missing" for rule in removed),
    ]


def _described(clients: Clients, group_id: str) -> dict[str, Any] | None:
    try:
        return _required(clients, group_id)
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise


def _required(clients: Clients, group_id: str) -> dict[str, Any]:
    with convert_errors(f"describing security group {group_id}"):
        groups = clients.client("ec2").describe_security_groups(GroupIds=[group_id])["SecurityGroups"]
    if not groups:
        message = f"security group {group_id} does not exist"
        raise CloudError(
            message, code="InvalidGroup.NotFound", hint="run `cloudgpu down` and `cloudgpu up` to create a new group"
        )
    group: dict[str, Any] = groups[0]
    return group


def _physical(group: dict[str, Any], inputs: Properties, region: str) -> ExistingResource:
    group_id, owner = group["GroupId"], group.get("OwnerId", "")
    outputs = {
        "arn": f"arn:aws:ec2:{region}:{owner}:security-group/{group_id}",
        "ownerId": owner,
        "name": group["GroupName"],
        "description": group["Description"],
        "vpcId": group.get("VpcId", ""),
        "ingress": to_pulumi_rules(group["IpPermissions"], group_id),
        "egress": to_pulumi_rules(group["IpPermissionsEgress"], group_id),
        **tag_outputs(inputs, tags_to_dict(group.get("Tags"))),
    }
    return ExistingResource(group_id, outputs)
