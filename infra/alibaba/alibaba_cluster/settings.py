"""Parse and validate the program's settings. An error message contains the key of the invalid setting."""

import hashlib
import ipaddress
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import pulumi

Market = Literal["on-demand", "spot"]

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,37}[a-z0-9])?")
_ZONE = re.compile(r"[a-z]{2}-[a-z]+(?:-\d+)?-?[a-z]")
_TYPE = re.compile(r"ecs\.(?:gn5|gn6v|gn6e|sccgn6|sccgn6e|sccgn6ne)(?:-c\d+g1)?\.\d*xlarge")
_SCC = "ecs.scc"


@dataclass(frozen=True)
class AlibabaArgs:
    """Settings of a cluster.

    Attributes:
        expires_at: Time (UTC, a whole minute) at which Alibaba Cloud releases the instances.
        ssh_cidrs: The only address ranges outside of the cluster that may connect to port 22.
        image: Image ID; empty for the latest Ubuntu 22.04 image from Alibaba Cloud.
        disk_gib: Size of the system disk.
        nas: Whether to create a file system that all nodes can mount.
        oss: Whether to create a bucket.
        disposable: Whether the data is deleted with the stack. Otherwise, it is retained and still billed.
    """

    cluster: str
    owner: str
    team: str
    run: str
    expires_at: datetime
    token: str
    instance_type: str
    nodes: int
    zone: str
    market: Market
    public_key: str
    ssh_cidrs: tuple[str, ...]
    image: str
    disk_gib: int
    nas: bool
    oss: bool
    disposable: bool
    bootstrap: str = ""

    @property
    def physical_name(self) -> str:
        """Name of the resources. It contains a hash, because bucket names must be globally unique."""
        return f"cloudgpu-{self.cluster}-{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    @property
    def rdma(self) -> bool:
        """True if the nodes are connected by RoCE."""
        return self.instance_type.startswith(_SCC)

    @property
    def tags(self) -> dict[str, str]:
        """Tags that identify the cluster's resources even if every local record is lost."""
        return {
            "cloudgpu:cluster": self.cluster,
            "cloudgpu:owner": self.owner,
            "cloudgpu:team": self.team,
            "cloudgpu:run": self.run,
            "cloudgpu:expires-at": self.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "cloudgpu:token": self.token,
        }

    @classmethod
    def read(cls, config: pulumi.Config) -> "AlibabaArgs":
        """Read and validate every setting."""
        return cls(
            cluster=_matching(config, "cluster", _NAME),
            owner=config.require("owner"),
            team=config.require("team"),
            run=config.get("run") or "",
            expires_at=_expiry(config),
            token=config.require("token"),
            instance_type=_matching(config, "instanceType", _TYPE),
            nodes=_whole(config, "nodes"),
            zone=_matching(config, "zone", _ZONE),
            market=_market(config),
            public_key=config.require("publicKey"),
            ssh_cidrs=_cidrs(config),
            image=config.get("image") or "",
            disk_gib=_whole(config, "diskGib"),
            nas=_yes(config, "nas"),
            oss=_yes(config, "oss"),
            disposable=_yes(config, "disposable"),
            bootstrap=config.get("bootstrap") or "",
        )


def _wrong(key: str, value: str, expected: str) -> pulumi.RunError:
    return pulumi.RunError(f"cloudgpu:{key} is {value!r}, expected {expected}")


def _matching(config: pulumi.Config, key: str, pattern: re.Pattern[str]) -> str:
    value = config.require(key)
    if not pattern.fullmatch(value):
        raise _wrong(key, value, f"text that matches {pattern.pattern}")
    return value


def _whole(config: pulumi.Config, key: str) -> int:
    value = config.require(key)
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise _wrong(key, value, "a whole number of at least 1")
    return int(value)


def _yes(config: pulumi.Config, key: str) -> bool:
    value = config.get(key) or "false"
    if value not in ("true", "false"):
        raise _wrong(key, value, "true or false")
    return value == "true"


def _expiry(config: pulumi.Config) -> datetime:
    """Return the expiry, a whole minute because Alibaba Cloud releases instances only at whole minutes."""
    value = config.require("expiresAt")
    try:
        return datetime.strptime(value, "%Y-%m-%dT%H:%M:00Z").replace(tzinfo=UTC)
    except ValueError as err:
        raise _wrong("expiresAt", value, "a UTC time at a whole minute, like 2026-11-21T05:00:00Z") from err


def _market(config: pulumi.Config) -> Market:
    value = config.get("market") or "on-demand"
    if value == "on-demand":
        return "on-demand"
    if value == "spot":
        return "spot"
    raise _wrong("market", value, "on-demand or spot")


def _cidrs(config: pulumi.Config) -> tuple[str, ...]:
    """Parse the SSH networks, a JSON list or one range, and reject the whole internet."""
    value = config.require("sshCidr")
    try:
        # Earlier versions of the program separated several ranges by commas.
        items = json.loads(value) if value.startswith("[") else value.split(",")
        networks = [ipaddress.IPv4Network(str(item).strip()) for item in items]
    except ValueError as err:
        raise _wrong("sshCidr", value, "an address range like 198.51.100.7/32, or a JSON list of them") from err
    if not networks or any(network.prefixlen == 0 for network in networks):
        raise _wrong("sshCidr", value, "a range smaller than the whole internet")
    return tuple(str(network) for network in networks)
