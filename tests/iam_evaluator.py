"""Evaluate IAM policies as AWS documents it, independently of the code that writes policies.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

Policy = Mapping[str, Any] | str
Context = Mapping[str, str]

_TOKEN = re.compile(r"\$\{(.*?)\}|([*?])|(.)", re.DOTALL)
_SPECIAL = "*?$"


def allowed(
    policies: Sequence[Policy],
    action: str,
    resource: str = "*",
    context: Context | None = None,
    *,
    boundary: Policy | None = None,
) -> bool:
    """Return True if the policies of an identity, and its boundary if it has one, allow a request."""
    known = context or {}
    if not _decision(policies, action, resource, known):
        return False
    return boundary is None or _decision([boundary], action, resource, known)


def _decision(policies: Sequence[Policy], action: str, resource: str, context: Context) -> bool:
    effects = set()
    for policy in policies:
        document = json.loads(policy) if isinstance(policy, str) else policy
        assert document["Version"] == "2012-10-17", "policy variables need this version"
        for statement in document["Statement"]:
            assert statement.keys() <= {"Sid", "Effect", "Action", "Resource", "Condition"}
            if _applies(statement, action, resource, context):
                effects.add(statement["Effect"])
    return "Allow" in effects and "Deny" not in effects


def _applies(statement: Mapping[str, Any], action: str, resource: str, context: Context) -> bool:
    return (
        any(_like(pattern.lower(), action.lower(), {}) for pattern in _listed(statement["Action"]))
        and any(_like(pattern, resource, context) for pattern in _listed(statement["Resource"]))
        and all(
            _condition(operator, context.get(key), _listed(values), context)
            for operator, keys in statement.get("Condition", {}).items()
            for key, values in keys.items()
        )
    )


def _condition(operator: str, value: str | None, expected: Sequence[str], context: Context) -> bool:
    if value is None:  # a key that the request lacks matches only negated operators, which no policy of ours has
        assert operator in ("StringEquals", "StringLike"), operator
        return False
    if operator == "StringEquals":
        return any(value == text for text in expected)
    assert operator == "StringLike", f"{operator} is not supported here"
    return any(_like(pattern, value, context) for pattern in expected)


def _like(pattern: str, text: str, context: Context) -> bool:
    """Return True if a pattern with wildcards and policy variables matches the whole text."""
    expression = _expression(pattern, tuple(context.items()) if "${" in pattern else ())
    return expression is not None and expression.fullmatch(text) is not None


@lru_cache(maxsize=1000)
def _expression(pattern: str, context: tuple[tuple[str, str], ...]) -> re.Pattern[str] | None:
    """Return a regular expression, or None for an unresolved variable, which invalidates the statement."""
    known, parts = dict(context), []
    for variable, wildcard, letter in _TOKEN.findall(pattern):
        if wildcard:
            parts.append(".*" if wildcard == "*" else ".")
        elif not variable:
            parts.append(re.escape(letter))
        elif variable in _SPECIAL:
            parts.append(re.escape(variable))
        elif variable in known:
            parts.append(re.escape(known[variable]))
        else:
            return None
    return re.compile("".join(parts), re.DOTALL)


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
