"""Evaluate a role's policies; only the policy features that cloudgpu uses are supported."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends

from cloudgpu.files import parse_json

_TAG_KEYS = ("aws:ResourceTag/", "ec2:ResourceTag/")


def find_role(arn: str) -> Any:  # noqa: ANN401 - moto's role
    """Return the role with this ARN, or None."""
    roles = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].roles.values()
    return next((role for role in roles if role.arn == arn), None)


def trusts(role: Any, service: str, source_arn: str) -> bool:  # noqa: ANN401
    """Return True if this service may assume the role on behalf of this resource."""
    for statement in _statements(role.assume_role_policy_document):
        principal = statement.get("Principal") or {}
        services = _as_list(principal.get("Service")) if isinstance(principal, dict) else []
        if service in services and _conditions_match(statement, {"aws:SourceArn": source_arn}):
            return True
    return False


def allows(role: Any, action: str, arn: str, tags: Mapping[str, str]) -> bool:  # noqa: ANN401
    """Return True if an inline policy of the role allows this action on this resource."""
    context = {f"{prefix}{key}": value for prefix in _TAG_KEYS for key, value in tags.items()}
    return any(
        _matches(statement.get("Action"), action)
        and _matches(statement.get("Resource"), arn)
        and _conditions_match(statement, context)
        for document in role.policies.values()
        for statement in _statements(document)
    )


def _statements(document: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - text or mapping
    try:
        policy = parse_json(document) if isinstance(document, str) else document
    except ValueError:
        return
    statements = policy.get("Statement") if isinstance(policy, dict) else None
    for statement in statements if isinstance(statements, list) else [statements]:
        if isinstance(statement, dict) and statement.get("Effect") == "Allow":
            yield statement


def _conditions_match(statement: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    """Return True if the conditions match.

    An unknown condition never matches, so that the simulation is never more permissive than AWS.
    """
    conditions = statement.get("Condition") or {}
    if not isinstance(conditions, dict) or not all(isinstance(keys, dict) for keys in conditions.values()):
        return False
    return all(
        operator in ("StringEquals", "ArnEquals", "StringLike", "ArnLike")
        and any(fnmatchcase(context.get(key, ""), pattern) for pattern in _as_list(value))
        for operator, keys in conditions.items()
        for key, value in keys.items()
    )


def _matches(patterns: Any, text: str) -> bool:  # noqa: ANN401 - text or list
    return any(fnmatchcase(text, pattern) for pattern in _as_list(patterns))


def _as_list(value: Any) -> list[str]:  # noqa: ANN401
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
