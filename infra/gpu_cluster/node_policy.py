"""The policy of the nodes' role: terminate the cluster's nodes, and access the S3 locations of its recipe."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

MAX_POLICY_CHARS = 10_240
"""IAM's limit on the size of all inline policies of a role, without white space."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MAX_KEY_BYTES = 1024
"""S3's limit on the length of a key in UTF-8."""
_ESCAPED = re.compile(r"[*?$]")
"""The characters with a meaning in a policy's resources and conditions: two wildcards, and policy variables."""
_WILDCARDS = "*?"
_READ = ("s3:GetObject",)
_WRITE = ("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject")
_SESSIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
"""Minimum actions for Session Manager according to AWS. IAM cannot restrict these actions to resources."""


@dataclass(frozen=True)
class Location:
    """A part of an S3 bucket: an object, and everything below its key as if the key were a directory.

    Attributes:
        key: Key as it is in a policy: with escaped characters, and with a wildcard in place of a run ID that is not
            known yet. Empty for the whole bucket.
        whole_segments: Whether the key ends a path segment, so that `run` does not contain `run2`. Version 0.1.0
            granted every key that begins with the text.
    """

    bucket: str
    key: str = ""
    whole_segments: bool = True

    @classmethod
    def parse(cls, item: object, *, whole_segments: bool = True) -> "Location":
        """Parse `bucket/prefix`, or a list of the parts of such a text between which any run's ID may be."""
        parts = item if isinstance(item, list) else [item]
        if not parts or not all(isinstance(part, str) for part in parts):
            message = f"{item!r} is neither a text nor a list of texts"
            raise ValueError(message)
        bucket, slash, first = str(parts[0]).partition("/")
        if not _BUCKET.fullmatch(bucket) or ".." in bucket or (len(parts) > 1 and not slash):
            message = f"{bucket!r} is not a valid bucket name"
            raise ValueError(message)
        keys = [first, *(str(part) for part in parts[1:])]
        if whole_segments:
            keys[0], keys[-1] = keys[0].lstrip("/"), keys[-1].rstrip("/")
        _require_key(keys)
        return cls(bucket, "*".join(_escape(key) for key in keys), whole_segments)

    def object_patterns(self, *, exact: bool) -> list[str]:
        """Return the patterns of the objects, as `bucket/key`. With `exact`, the key may itself be an object."""
        if not self.key or not self.whole_segments:
            return [f"{self.bucket}/{self.key}*"]
        below = f"{self.bucket}/{self.key}/*"
        return [f"{self.bucket}/{self.key}", below] if exact else [below]

    @property
    def listing_pattern(self) -> str:
        """Pattern of the prefixes that may be listed; empty for the whole bucket."""
        if not self.key:
            return ""
        return f"{self.key}/*" if self.whole_segments else f"{self.key}*"


@dataclass(frozen=True)
class Grants:
    """Permissions that the nodes need.

    Attributes:
        readable: S3 locations that the nodes may read.
        writable: S3 locations that the nodes may also write.
        sessions: Whether a node's SSM agent may connect to Session Manager, which then forwards SSH to the node.
    """

    readable: tuple[Location, ...] = ()
    writable: tuple[Location, ...] = ()
    sessions: bool = False


def node_policy(region: str, token: str, grants: Grants) -> str:
    """Return the policy. Only actions that IAM cannot restrict to resources are allowed on all resources."""
    partition = partition_of(region)
    statements = [_own_nodes(region, token, partition), *_data(grants, partition)]
    if grants.sessions:
        statements.append({"Effect": "Allow", "Action": list(_SESSIONS), "Resource": "*"})
    text = json.dumps({"Version": "2012-10-17", "Statement": statements}, sort_keys=True)
    if len(re.sub(r"\s", "", text)) > MAX_POLICY_CHARS:
        message = (
            f"cloudgpu:readable and cloudgpu:writable need a policy of {len(text)} characters, and IAM allows "
            f"{MAX_POLICY_CHARS}: name fewer or shorter S3 locations"
        )
        raise pulumi.RunError(message)
    return text


def partition_of(region: str) -> str:
    """Return the partition of a region as ARNs name it."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _own_nodes(region: str, token: str, partition: str) -> dict[str, Any]:
    """Return the statement that allows terminating the cluster's nodes, selected by token because names are reused."""
    return {
        "Effect": "Allow",
        "Action": ["ec2:TerminateInstances"],
        "Resource": f"arn:{partition}:ec2:{region}:*:instance/*",
        "Condition": {"StringEquals": {"aws:ResourceTag/cloudgpu:token": token}},
    }


def _data(grants: Grants, partition: str) -> Iterator[dict[str, Any]]:
    """Yield the statements for S3. Those for locations of version 0.1.0 stay as they are on its clusters."""
    kinds = ((grants.readable, _READ), (grants.writable, _WRITE))
    for locations, actions in kinds:
        for location in locations:
            if not location.whole_segments:
                yield _listing([location], partition)
                yield _objects([location], actions, partition)
    whole = [location for location in (*grants.readable, *grants.writable) if location.whole_segments]
    for bucket in dict.fromkeys(location.bucket for location in whole):
        yield _listing([location for location in whole if location.bucket == bucket], partition)
    for locations, actions in kinds:
        if here := [location for location in locations if location.whole_segments]:
            yield _objects(here, actions, partition)


def _listing(locations: Sequence[Location], partition: str) -> dict[str, Any]:
    """Return the statement that allows listing these locations of one bucket."""
    statement = {
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": f"arn:{partition}:s3:::{locations[0].bucket}",
    }
    patterns = list(dict.fromkeys(location.listing_pattern for location in locations))
    if all(patterns):
        return {**statement, "Condition": {"StringLike": {"s3:prefix": _one_or_many(patterns)}}}
    return statement


def _objects(locations: Sequence[Location], actions: tuple[str, ...], partition: str) -> dict[str, Any]:
    """Return the statement for the objects. A dataset may be a single object, but uploads are below a location."""
    patterns = [pattern for location in locations for pattern in location.object_patterns(exact=actions == _READ)]
    arns = [f"arn:{partition}:s3:::{pattern}" for pattern in dict.fromkeys(patterns)]
    return {"Effect": "Allow", "Action": list(actions), "Resource": _one_or_many(arns)}


def _one_or_many(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def _require_key(parts: Sequence[str]) -> None:
    """Reject a key that S3 does not accept, or with which a policy might mean something else."""
    key = "".join(parts)
    if any(wildcard in key for wildcard in _WILDCARDS):
        message = f"{key!r} contains a wildcard (* or ?)"
        raise ValueError(message)
    if not key.isprintable():  # also rejects lone surrogates, which have no UTF-8
        message = f"{key!r} contains a character that cannot be printed"
        raise ValueError(message)
    if len(key.encode()) > _MAX_KEY_BYTES:
        message = f"a key has at most {_MAX_KEY_BYTES} bytes, not {len(key.encode())}"
        raise ValueError(message)


def _escape(text: str) -> str:
    """Escape the characters that have a meaning in a policy, so that they match only themselves."""
    return _ESCAPED.sub(lambda match: f"${{{match[0]}}}", text)
