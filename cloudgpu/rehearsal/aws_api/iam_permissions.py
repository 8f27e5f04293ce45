"""Evaluate a role's policies, with the policy features that cloudgpu uses and explicit denies."""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends

from cloudgpu.files import parse_json

AWS_MANAGED = "arn:aws:iam::aws:policy/"
"""Beginning of the ARNs of the policies that AWS manages."""
_TAG_KEYS = ("aws:ResourceTag/", "ec2:ResourceTag/")


def find_role(arn: str) -> Any:  # noqa: ANN401 - moto's role
    """Return the role with this ARN, or None."""
    roles = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].roles.values()
    return next((role for role in roles if role.arn == arn), None)


def trusts(role: Any, service: str, source_arn: str) -> bool:  # noqa: ANN401
    """Return True if this service may assume the role on behalf of this resource."""
    context = {"aws:SourceArn": source_arn}
    statements = list(_statements(role.assume_role_policy_document))
    return _decide(statements, lambda statement: _names_service(statement, service), context)


def allows(role: Any, action: str, arn: str, tags: Mapping[str, str]) -> bool:  # noqa: ANN401
    """Return True if an inline policy of the role allows this action on this resource, and none denies it.

    The role's permissions boundary must allow the action as well. A boundary that does not exist allows nothing; the
    policies that AWS manages are not simulated, and count as no limit.
    """
    context = {f"{prefix}{key}": value for prefix in _TAG_KEYS for key, value in tags.items()}
    limits = [[*role.policies.values()]]
    boundary = str(getattr(role, "permissions_boundary_arn", None) or "")
    if boundary and not boundary.startswith(AWS_MANAGED):
        limits.append(_default_version(boundary))
    return all(
        _decide(
            [statement for document in documents for statement in _statements(document)],
            lambda statement: _covers(statement, action, arn),
            context,
        )
        for documents in limits
    )


def _default_version(policy_arn: str) -> list[str]:
    """Return the document of a managed policy, or an empty list if there is no such policy."""
    policy = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].managed_policies.get(policy_arn)
    versions = policy.versions if policy else ()
    return [version.document for version in versions if policy and version.version_id == policy.default_version_id]


def _decide(
    statements: Iterable[dict[str, Any]], applies: Callable[[dict[str, Any]], bool], context: Mapping[str, str]
) -> bool:
    """Return True if a statement allows and none denies: an explicit deny overrides every allow."""
    effects = {
        statement.get("Effect")
        for statement in statements
        if applies(statement) and _conditions_match(statement, context)
    }
    return "Allow" in effects and "Deny" not in effects


def _statements(document: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - text or mapping
    try:
        policy = parse_json(document) if isinstance(document, str) else document
    except ValueError:
        return
    statements = policy.get("Statement") if isinstance(policy, dict) else None
    for statement in statements if isinstance(statements, list) else [statements]:
        if isinstance(statement, dict):
            yield statement


def _names_service(statement: Mapping[str, Any], service: str) -> bool:
    principal = statement.get("Principal") or {}
    return service in (_as_list(principal.get("Service")) if isinstance(principal, dict) else [])


def _covers(statement: Mapping[str, Any], action: str, arn: str) -> bool:
    """Return True if a statement is about this action and resource.

    `NotAction` and `NotResource` are supported only as far as a deny with them always applies.
    """
    denies = statement.get("Effect") == "Deny"
    return all(
        _matches(statement.get(member), value) or (denies and f"Not{member}" in statement)
        for member, value in (("Action", action), ("Resource", arn))
    )


def _conditions_match(statement: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    """Return True if all conditions of a statement match.

    Of a condition with an unsupported operator, the worse is assumed: an allow does not apply, and a deny does.
    """
    conditions, unsupported = statement.get("Condition") or {}, statement.get("Effect") == "Deny"
    if not isinstance(conditions, dict) or not all(isinstance(keys, dict) for keys in conditions.values()):
        return unsupported
    return all(
        _condition_matches(_OPERATORS[name], keys, context) if name in _OPERATORS else unsupported
        for name, keys in conditions.items()
    )


def _condition_matches(
    compare: Callable[[str, str], bool], keys: Mapping[str, Any], context: Mapping[str, str]
) -> bool:
    """Return True if each key has one of its values. A key that the request lacks does not match."""
    return all(
        key in context and any(compare(context[key], expected) for expected in _as_list(values))
        for key, values in keys.items()
    )


def _is_like(text: str, pattern: str) -> bool:
    """Compare with a pattern in which only `*` and `?` are special."""
    parts = (".*" if part == "*" else "." if part == "?" else re.escape(part) for part in re.split(r"([*?])", pattern))
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def _matches(patterns: Any, text: str) -> bool:  # noqa: ANN401 - text or list
    return any(_is_like(text, pattern) for pattern in _as_list(patterns))


def _as_list(value: Any) -> list[str]:  # noqa: ANN401
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


_OPERATORS: Mapping[str, Callable[[str, str], bool]] = {
    "StringEquals": operator.eq,
    "StringLike": _is_like,
    "ArnEquals": _is_like,
    "ArnLike": _is_like,
}
"""Comparison by condition operator. The two for ARNs are the same, as IAM documents."""
