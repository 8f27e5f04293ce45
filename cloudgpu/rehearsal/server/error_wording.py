"""The wording of AWS's errors where moto words them differently; programs and people read these messages.

The wordings are those that others recorded: `tests/rehearsal/fidelity/recorded_errors.py` names the source of each.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class _NotFound:
    """How EC2 reports that resources of one type do not exist; `{}` stands for their ids."""

    prefix: str
    text: str


_NOT_FOUND: Final = {
    "InvalidAllocationID.NotFound": _NotFound("eipalloc", "The allocation ID '{}' does not exist"),
    "InvalidGroup.NotFound": _NotFound("sg", "The security group '{}' does not exist"),
    "InvalidInstanceID.NotFound": _NotFound("i", "The instance ID '{}' does not exist"),
    "InvalidInternetGatewayID.NotFound": _NotFound("igw", "The internetGateway ID '{}' does not exist"),
    "InvalidLaunchTemplateId.NotFound": _NotFound(
        "lt", "The specified launch template, with template ID {}, does not exist."
    ),
    "InvalidNetworkInterfaceID.NotFound": _NotFound("eni", "The networkInterface ID '{}' does not exist"),
    "InvalidRouteTableID.NotFound": _NotFound("rtb", "The routeTable ID '{}' does not exist"),
    "InvalidSnapshot.NotFound": _NotFound("snap", "The snapshot '{}' does not exist."),
    "InvalidSubnetID.NotFound": _NotFound("subnet", "The subnet ID '{}' does not exist"),
    "InvalidVolume.NotFound": _NotFound("vol", "The volume '{}' does not exist."),
    "InvalidVpcEndpointId.NotFound": _NotFound("vpce", "The Vpc Endpoint Id '{}' does not exist"),
    "InvalidVpcID.NotFound": _NotFound("vpc", "The vpc ID '{}' does not exist"),
    "NatGatewayNotFound": _NotFound("nat", "NAT gateway {} was not found"),
}
_QUOTED_LIST: Final = re.compile(r"[{\[]('[^{}\[\]]*')[}\]]")
"""Ids as Python prints a set or list of them, which is how moto prints them."""


@dataclass(frozen=True)
class _Wording:
    """A message of moto, and AWS's wording with the groups of the pattern in it."""

    code: str
    moto: re.Pattern[str]
    text: str


def _wordings(*rows: tuple[str, str, str]) -> tuple[_Wording, ...]:
    return tuple(_Wording(code, re.compile(pattern), text) for code, pattern, text in rows)


_WORDINGS: Final = {
    "ec2": _wordings(
        (
            "DependencyViolation",
            r"(igw-\w+) is being utilized by vpc-\w+",
            "The internetGateway '{}' has dependencies and cannot be deleted.",
        ),
        ("DependencyViolation", r"The vpc (vpc-\w+) has dependencies and cannot be deleted\.",
         "The vpc '{}' has dependencies and cannot be deleted."),
        ("InvalidAssociationID.NotFound", r"Association ID '(\S+)' not found\.",
         "The association ID '{}' does not exist"),
        ("InvalidKeyPair.NotFound", r"The keypair '(.+)' does not exist\.", "The key pair '{}' does not exist"),
    ),
    "iam": _wordings(
        ("NoSuchEntity", r"Role (\S+) not found", "The role with name {} cannot be found."),
        ("NoSuchEntity", r"Instance profile (\S+) not found", "Instance Profile {} cannot be found."),
        ("NoSuchEntity", r"Policy (arn:[^:]*:iam::aws:\S+) not found", "Policy {} was not found."),
        ("NoSuchEntity", r"Policy (arn:\S+) not found", "Policy {} does not exist or is not attachable."),
        ("NoSuchEntity", r"Policy (\S+) not found", "The role policy with name {} cannot be found."),
    ),
}  # fmt: skip
"""Wordings by service. The first that matches applies."""


def not_found_message(code: str, ids: Iterable[str]) -> str:
    """Return EC2's message for resources that do not exist.

    Args:
        code: An error code of EC2 that names a type of resource, such as `InvalidVolume.NotFound`.
        ids: The ids that do not exist.
    """
    return _NOT_FOUND[code].text.format(", ".join(ids))


def aws_message(service: str, code: str, message: str) -> str:
    """Return the message as AWS words it."""
    for wording in _WORDINGS.get(service, ()):
        match = wording.moto.fullmatch(message) if wording.code == code else None
        if match is not None:
            return wording.text.format(*match.groups())
    known = _NOT_FOUND.get(code) if service == "ec2" else None
    if known is None:
        return message
    listed = _QUOTED_LIST.search(message)
    ids = re.findall(r"'([^']*)'", listed[1]) if listed else re.findall(rf"\b{known.prefix}-\w+", message)
    # One missing id can be named as AWS does; how AWS lists several is not recorded for every type.
    return known.text.format(ids[0]) if len(ids) == 1 else _QUOTED_LIST.sub(r"\1", message)
