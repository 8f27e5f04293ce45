"""`aws:ec2/securityGroup:SecurityGroup`."""

from collections.abc import Callable
from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import mapped, retag, specification
from cloudgpu.aws.resources.base import HandlerContext, Physical, Properties
from cloudgpu.aws.resources.described import DescribedHandler, all_tags, changed_tags, completed, is_ours, tag_outputs
from cloudgpu.aws.resources.rules import RULE_KEYS, PortRule, present, shown, wanted
from cloudgpu.aws.session.errors import is_gone, is_in_use, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import retried
from cloudgpu.errors import CloudError, CloudGpuError

_RELEASE_S = 600
"""How long interfaces of ended instances may hold a group."""
_APPEAR_S = 30


class SecurityGroupHandler(DescribedHandler):
    """Security group with exactly the given rules. Without `egress`, it blocks all outgoing traffic, unlike on AWS."""

    type: ClassVar[str] = "aws:ec2/securityGroup:SecurityGroup"
    accepts = frozenset({"name", "description", "vpcId", "ingress", "egress", "revokeRulesOnDelete"})
    requires = frozenset({"name"})
    defaults: ClassVar[Properties] = {"description": "Managed by Pulumi", "revokeRulesOnDelete": False}
    replaced_by = frozenset({"name", "description", "vpcId"})
    nested: ClassVar[dict[str, frozenset[str]]] = {"ingress": RULE_KEYS, "egress": RULE_KEYS}

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Create the group and set its rules.

        Raises:
            BadRequestError: A group of this name already exists in the VPC, or a rule is invalid.
        """
        request = {
            "GroupName": inputs["name"],
            "Description": inputs["description"],
            "TagSpecifications": [specification("security-group", all_tags(ctx, inputs))],
        }
        if inputs.get("vpcId"):
            request["VpcId"] = inputs["vpcId"]
        with typed(f"making security group {inputs['name']}"):
            group_id = ctx.clients.client("ec2").create_security_group(**request)["GroupId"]
        return self._settled(ctx, group_id, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Return the group that this call created, after completing its rules."""
        filters = [{"Name": "group-name", "Values": [inputs["name"]]}]
        if inputs.get("vpcId"):
            filters.append({"Name": "vpc-id", "Values": [inputs["vpcId"]]})
        with typed(f"looking for security group {inputs['name']}"):
            groups = ctx.clients.client("ec2").describe_security_groups(Filters=filters)["SecurityGroups"]
        ours = [group for group in groups if is_ours(ctx, mapped(group.get("Tags")))]
        if not ours:
            return None
        group_id = ours[0]["GroupId"]
        region = ctx.clients.region
        return completed(
            lambda: self._settled(ctx, group_id, inputs),
            lambda: _physical(_required(ctx.clients, group_id), inputs, region),
        )

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state."""
        found = _described(ctx.clients, physical_id)
        return _physical(found, {"tags": mapped(found.get("Tags"))}, ctx.clients.region) if found else None

    def drift(self, ctx: HandlerContext, physical_id: str, inputs: Properties) -> tuple[str, ...]:
        """Describe every rule that was added or removed by other means. Changed descriptions do not count.

        Raises:
            CloudError: The group no longer exists, or AWS cannot be reached.
        """
        found = _required(ctx.clients, physical_id)
        sides = (("in", "ingress", "IpPermissions"), ("out", "egress", "IpPermissionsEgress"))
        return tuple(
            f"security group {physical_id}: {what} {side}"
            for side, key, described in sides
            for what in _differences(wanted(inputs.get(key), physical_id), present(found[described]))
        )

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:
        """Change its rules and tags; a rule that stays is never taken away meanwhile."""
        retag(ctx.clients, physical_id, changed_tags(ctx, old), changed_tags(ctx, new))
        return self._settled(ctx, physical_id, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the group once no interface uses it."""

        def attempt() -> None:
            with typed(f"deleting security group {physical_id}"):
                ctx.clients.client("ec2").delete_security_group(GroupId=physical_id)

        try:
            retried(ctx.clock, attempt, when=is_in_use, total_s=_RELEASE_S)
        except CloudGpuError as err:
            if not is_gone(err):
                raise

    def _settled(self, ctx: HandlerContext, group_id: str, inputs: Properties) -> Physical:
        """Make the rules match the request, wherever an earlier attempt was interrupted."""
        # A group that was made a moment ago may not be visible to every server yet.
        found = retried(ctx.clock, lambda: _required(ctx.clients, group_id), when=is_gone, total_s=_APPEAR_S)
        ec2 = ctx.clients.client("ec2")
        inwards = wanted(inputs.get("ingress"), group_id), present(found["IpPermissions"])
        outwards = wanted(inputs.get("egress"), group_id), present(found["IpPermissionsEgress"])
        with typed(f"setting the rules of security group {group_id}"):
            _change(*inwards, group_id, _Side(ec2, "ingress"))
            _change(*outwards, group_id, _Side(ec2, "egress"))
        return _physical(_required(ctx.clients, group_id), inputs, ctx.clients.region)


class _Side:
    """The calls that change the rules of one direction."""

    def __init__(self, ec2: Any, direction: str) -> None:  # noqa: ANN401
        self.authorize: Callable[..., Any] = getattr(ec2, f"authorize_security_group_{direction}")
        self.revoke: Callable[..., Any] = getattr(ec2, f"revoke_security_group_{direction}")
        self.describe: Callable[..., Any] = getattr(ec2, f"update_security_group_rule_descriptions_{direction}")


def _change(want: frozenset[PortRule], have: frozenset[PortRule], group_id: str, side: _Side) -> None:
    """Add missing rules before removing extra ones, so that traffic allowed before and after is never interrupted."""
    wanted_keys, present_keys = {rule.key for rule in want}, {rule.key for rule in have}
    missing = sorted(rule for rule in want if rule.key not in present_keys)
    reworded = sorted(rule for rule in want - have if rule.key in present_keys)
    too_much = sorted(rule for rule in have if rule.key not in wanted_keys)
    for call, rules in ((side.authorize, missing), (side.describe, reworded), (side.revoke, too_much)):
        if rules:
            call(GroupId=group_id, IpPermissions=[rule.permission() for rule in rules])


def _differences(want: frozenset[PortRule], have: frozenset[PortRule]) -> list[str]:
    wanted_keys, present_keys = {rule.key for rule in want}, {rule.key for rule in have}
    added = [f"{rule.shown} was let" for rule in sorted(have) if rule.key not in wanted_keys]
    return added + [f"{rule.shown} was no longer let" for rule in sorted(want) if rule.key not in present_keys]


def _described(clients: Clients, group_id: str) -> dict[str, Any] | None:
    try:
        return _required(clients, group_id)
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise


def _required(clients: Clients, group_id: str) -> dict[str, Any]:
    with typed(f"looking at security group {group_id}"):
        groups = clients.client("ec2").describe_security_groups(GroupIds=[group_id])["SecurityGroups"]
    if not groups:
        message = f"security group {group_id} does not exist"
        raise CloudError(
            message, code="InvalidGroup.NotFound", hint="`cloudgpu down` and `cloudgpu up` create a new one"
        )
    found: dict[str, Any] = groups[0]
    return found


def _physical(found: dict[str, Any], inputs: Properties, region: str) -> Physical:
    group_id, owner = found["GroupId"], found.get("OwnerId", "")
    outputs = {
        "arn": f"arn:aws:ec2:{region}:{owner}:security-group/{group_id}",
        "ownerId": owner,
        "name": found["GroupName"],
        "description": found["Description"],
        "vpcId": found.get("VpcId", ""),
        "ingress": shown(found["IpPermissions"], group_id),
        "egress": shown(found["IpPermissionsEgress"], group_id),
        **tag_outputs(inputs, mapped(found.get("Tags"))),
    }
    return Physical(group_id, outputs)
