"""What a caller may do in an account: identity, permissions and quotas, as `doctor` checks them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cloudgpu.catalog.quotas import Quota

Conditions = Mapping[str, Mapping[str, Any]]
PermissionState = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True)
class Identity:
    """Identity of the caller. `login` is the source of the caller's credentials, as messages show it."""

    account: str
    arn: str
    login: str


@dataclass(frozen=True)
class Grant:
    """A permission grant: actions on resources under one condition.

    Attributes:
        name: Statement ID (`Sid`) in the policy.
        purpose: Purpose of the permission, for example `launch instances`.
    """

    name: str
    purpose: str
    actions: tuple[str, ...]
    resources: tuple[str, ...] = ("*",)
    conditions: Conditions = field(default_factory=dict)


@dataclass(frozen=True)
class PermissionResult:
    """Result for one action. `why` explains how the state was determined, or why the state is unknown."""

    action: str
    state: PermissionState
    why: str


@dataclass(frozen=True)
class QuotaLimit:
    """A vCPU quota in one region. `vcpus` is None if the cloud does not report the quota."""

    quota: Quota
    region: str
    vcpus: int | None
