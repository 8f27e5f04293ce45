"""Deletion of security groups, which AWS rejects while a group is in use."""

from collections.abc import Iterator
from typing import Any

from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, rule


@rule("DeleteSecurityGroup")
def delete(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Delete a security group, unless an interface or a rule of another group refers to the group."""
    name_or_id = str(call.params.get("GroupId") or call.params.get("GroupName") or "")
    group = call.backend.get_security_group_by_name_or_id(name_or_id)
    if group is not None and any(True for _ in _uses(call, str(group.id))):
        raise AwsError("DependencyViolation", f"resource {group.id} has a dependent object")
    return call.proceed()


def _uses(call: ParsedRequest, group_id: str) -> Iterator[str]:
    for interface in call.backend.enis.values():
        if any(group.id == group_id for group in interface.group_set):
            yield str(interface.id)
    for groups in call.backend.groups.values():
        for other in groups.values():
            if other.id != group_id and _refers_to(other, group_id):
                yield str(other.id)


def _refers_to(group: Any, group_id: str) -> bool:  # noqa: ANN401 - moto's group
    rules = [*group.ingress_rules, *group.egress_rules]
    return any(row.source_group.get("GroupId") == group_id for row in rules)
