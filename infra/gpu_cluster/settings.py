"""Parse and validate the program's settings, and return the tags of its resources.

An error message contains the key of the invalid setting.
"""

import ipaddress
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import pulumi

from gpu_cluster.interfaces import EfaLayout, interfaces, max_efa_interfaces
from gpu_cluster.node_policy import Location

Market = Literal["on-demand", "spot", "reservation", "capacity-block"]
PublicAddress = Literal["auto", "elastic", "nat", "private", "private-nat"]
Reach = Literal["direct", "ssm"]
MARKETS: tuple[Market, ...] = ("on-demand", "spot", "reservation", "capacity-block")
PUBLIC_ADDRESSES: tuple[PublicAddress, ...] = ("auto", "elastic", "nat", "private", "private-nat")
REACHES: tuple[Reach, ...] = ("direct", "ssm")
EFA_LAYOUTS: tuple[EfaLayout, ...] = ("combined", "separate")

_NAME = re.compile(r"[a-z][a-z0-9-]{0,38}")
_ZONE = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d+)(?:[a-z]|-[a-z]+-\d+[a-z])")
_REGION_GROUP = 1
_RESERVATION = re.compile(r"cr-[0-9a-f]{8,17}")
_POLICY_ARN = re.compile(r"arn:aws(?:-cn|-us-gov)?:iam::(?:[0-9]{12}|aws):policy/[\w+=,.@/-]{1,512}", re.ASCII)
_GROUP = re.compile(r"sg-[0-9a-z-]{1,64}")


@dataclass(frozen=True)
class Named:
    """Existing resources to use. For each empty field, the program creates the resource or uses the default one.

    Attributes:
        permissions_boundary: ARN of the policy that limits the roles that the program creates; empty for no limit.
    """

    vpc_id: str = ""
    subnet_id: str = ""
    security_group_id: str = ""
    role_name: str = ""
    permissions_boundary: str = ""
    instance_profile: str = ""
    schedule_role_arn: str = ""
    key_name: str = ""
    kms_key_id: str = ""


@dataclass(frozen=True)
class ClusterArgs:
    """Settings of a cluster.

    Attributes:
        expires_at: Time (UTC) at which the nodes power themselves off.
        ssh_cidrs: Address ranges that may connect to port 22; none if SSH uses Session Manager.
        image: Image ID (`ami-...`), or the SSM parameter that contains it.
        disk_gib: Size of the root volume.
        efa_interfaces: EFA interfaces per node; 0 means plain TCP.
        public_address: How nodes get addresses. `auto`: EC2 assigns them. `elastic`: one Elastic IP per node. `nat`: an
            Elastic IP for the first node, and NAT for all nodes. `private`: private addresses in the user's subnet.
            `private-nat`: private addresses behind NAT.
        reach: `direct`: the caller connects to port 22. `ssm`: SSH uses Session Manager, and no port is open.
        reservation: ID of the capacity reservation to launch into; empty for markets that do not use one.
        readable: S3 locations that the nodes may read.
        writable: S3 locations that the nodes may also write.
        create_vpc: Whether to create a VPC instead of using the region's default VPC.
        bootstrap: Shell script that every node runs at its first boot; must not contain secrets.
        storage_group_ids: Additional security groups that give the nodes access to storage.
        tags: The user's own tags, for every resource.
        chosen_subnet_id: Subnet that the plan chose; empty if the program chooses one, or if `named` has one.
        efa_layout: How TCP and EFA share the network cards; see `interfaces.py`.
        tags_in_call: Whether the launch call tags the instances, so that the launch template must not.
        expiry_schedule: Whether AWS also terminates the nodes shortly after the expiry.
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
    efa_interfaces: int
    create_vpc: bool = False
    public_address: PublicAddress = "auto"
    reach: Reach = "direct"
    reservation: str = ""
    readable: tuple[Location, ...] = ()
    writable: tuple[Location, ...] = ()
    bootstrap: str = ""
    expiry_schedule: bool = True
    storage_group_ids: tuple[str, ...] = ()
    named: Named = Named()
    tags: dict[str, str] = field(default_factory=dict)
    chosen_subnet_id: str = ""
    efa_layout: EfaLayout = "combined"
    tags_in_call: bool = False

    @property
    def region(self) -> str:
        """Region that contains the zone."""
        match = _ZONE.fullmatch(self.zone)
        return match.group(_REGION_GROUP) if match else self.zone

    @classmethod
    def read(cls, config: pulumi.Config) -> "ClusterArgs":
        """Read and validate every setting."""
        named = _named(config)
        return cls(
            cluster=_matching(config, "cluster", _NAME),
            owner=config.require("owner"),
            team=config.require("team"),
            run=config.require("run"),
            expires_at=_utc(config),
            token=config.require("token"),
            instance_type=config.require("instanceType"),
            nodes=_whole(config, "nodes", least=1),
            zone=_matching(config, "zone", _ZONE),
            market=_market(config),
            public_key=(config.get("publicKey") or "") if named.key_name else config.require("publicKey"),
            ssh_cidrs=_cidrs(config),
            image=config.require("image"),
            disk_gib=_whole(config, "diskGib", least=1),
            efa_interfaces=_efa(config),
            create_vpc=_create_vpc(config, named),
            public_address=_public_address(config, named),
            reach=_reach(config),
            reservation=_reservation(config),
            readable=_locations(config, "readable"),
            writable=_locations(config, "writable"),
            bootstrap=config.get("bootstrap") or "",
            expiry_schedule=_flag(config, "expirySchedule", default="true"),
            storage_group_ids=_group_ids(config),
            named=named,
            tags=_own_tags(config),
            chosen_subnet_id=config.get("chosenSubnetId") or "",
            efa_layout=_efa_layout(config),
            tags_in_call=_flag(config, "tagsInCall", default="false"),
        )


def _named(config: pulumi.Config) -> Named:
    return Named(
        vpc_id=config.get("vpcId") or "",
        subnet_id=config.get("subnetId") or "",
        security_group_id=config.get("securityGroupId") or "",
        role_name=config.get("roleName") or "",
        permissions_boundary=_boundary(config),
        instance_profile=config.get("instanceProfile") or "",
        schedule_role_arn=config.get("scheduleRoleArn") or "",
        key_name=config.get("keyName") or "",
        kms_key_id=config.get("kmsKeyId") or "",
    )


def _boundary(config: pulumi.Config) -> str:
    value = config.get("permissionsBoundary") or ""
    if value and not _POLICY_ARN.fullmatch(value):
        raise _wrong("permissionsBoundary", value, "the ARN of an IAM policy")
    return value


def _wrong(key: str, value: str, expected: str) -> pulumi.RunError:
    return pulumi.RunError(f"cloudgpu:{key} is {value!r}, expected {expected}")


def _matching(config: pulumi.Config, key: str, pattern: re.Pattern[str]) -> str:
    value = config.require(key)
    if not pattern.fullmatch(value):
        raise _wrong(key, value, f"text that matches {pattern.pattern}")
    return value


def _whole(config: pulumi.Config, key: str, *, least: int) -> int:
    value = config.require(key)
    if not value.isascii() or not value.isdigit() or int(value) < least:
        raise _wrong(key, value, f"a whole number of at least {least}")
    return int(value)


def _utc(config: pulumi.Config) -> datetime:
    value = config.require("expiresAt")
    try:
        return datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError as err:
        raise _wrong("expiresAt", value, "a UTC time like 2026-11-21T05:00:00Z") from err


def _market(config: pulumi.Config) -> Market:
    value = config.require("market")
    for market in MARKETS:
        if value == market:
            return market
    raise _wrong("market", value, f"one of {', '.join(MARKETS)}")


def _reservation(config: pulumi.Config) -> str:
    """Return the reservation ID, which markets that launch into a reservation require and all other markets reject."""
    value, market = config.get("reservation") or "", _market(config)
    needs_reservation = market in ("reservation", "capacity-block")
    if needs_reservation and not _RESERVATION.fullmatch(value):
        raise _wrong("reservation", value, f"the ID of the capacity reservation (cr-...), for market {market}")
    if value and not needs_reservation:
        raise _wrong("reservation", value, f"no value, since the market is {market}")
    return value


def _items(config: pulumi.Config, key: str) -> tuple[list[Any], bool]:
    """Return the items of a list, and whether the list is JSON rather than the comma-separated text of version 0.1.0.

    Clusters of that version keep their settings, and an update of them must not change more than it has to.
    """
    text = (config.get(key) or "").strip()
    if not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()], False
    try:
        items = json.loads(text)
    except ValueError as err:
        raise _wrong(key, text, "a JSON list") from err
    return list(items), True


def _locations(config: pulumi.Config, key: str) -> tuple[Location, ...]:
    """Read S3 locations: `bucket/prefix`, or a list of the parts between which any run's ID may be."""
    items, is_json = _items(config, key)
    try:
        return tuple(Location.parse(item, whole_segments=is_json) for item in items)
    except ValueError as err:
        raise _wrong(key, config.get(key) or "", f"a JSON list of S3 locations (bucket/prefix): {err}") from err


def _group_ids(config: pulumi.Config) -> tuple[str, ...]:
    key = "storageSecurityGroupIds"
    items, _ = _items(config, key)
    if not all(isinstance(item, str) and _GROUP.fullmatch(item) for item in items):
        raise _wrong(key, config.get(key) or "", "a JSON list of security group IDs (sg-...)")
    return tuple(items)


def _cidrs(config: pulumi.Config) -> tuple[str, ...]:
    """Parse the SSH networks and reject the whole internet. Return () if SSH uses Session Manager."""
    if _reach(config) == "ssm":
        return ()
    value = config.require("sshCidr")
    items, _ = _items(config, "sshCidr")
    try:
        networks = [ipaddress.ip_network(str(item)) for item in items]
    except ValueError as err:
        raise _wrong("sshCidr", value, "an address range like 198.51.100.7/32, or a JSON list of them") from err
    if not networks or any(network.prefixlen == 0 for network in networks):
        raise _wrong("sshCidr", value, "a range smaller than the whole internet")
    return tuple(str(network) for network in networks)


def _efa(config: pulumi.Config) -> int:
    count, instance_type = _whole(config, "efaInterfaces", least=0), config.require("instanceType")
    if count > max_efa_interfaces(instance_type):
        raise _wrong("efaInterfaces", str(count), f"at most {max_efa_interfaces(instance_type)} for {instance_type}")
    return count


def _efa_layout(config: pulumi.Config) -> EfaLayout:
    value = config.get("efaLayout") or "combined"
    for layout in EFA_LAYOUTS:
        if value == layout:
            return layout
    raise _wrong("efaLayout", value, f"one of {', '.join(EFA_LAYOUTS)}")


def _public_address(config: pulumi.Config, named: Named) -> PublicAddress:
    value = config.get("publicAddress") or "auto"
    address = next((address for address in PUBLIC_ADDRESSES if value == address), None)
    if address is None:
        raise _wrong("publicAddress", value, f"one of {', '.join(PUBLIC_ADDRESSES)}")
    has_several_interfaces = len(interfaces(config.require("instanceType"), _efa(config))) > 1
    if address == "auto" and has_several_interfaces and not named.subnet_id:
        expected = "elastic, nat or private-nat: EC2 assigns no public address to nodes with several network interfaces"
        raise _wrong("publicAddress", value, expected)
    if address in ("nat", "private-nat") and (named.vpc_id or named.subnet_id or named.security_group_id):
        expected = "elastic or private, since vpcId, subnetId or securityGroupId is set to an existing network"
        raise _wrong("publicAddress", value, expected)
    if address == "private" and not (named.subnet_id or config.get("chosenSubnetId")):
        raise _wrong("publicAddress", value, "elastic or nat, or a cloudgpu:subnetId with addresses you can reach")
    if address == "private-nat" and _reach(config) != "ssm":
        raise _wrong("publicAddress", value, "nat, or cloudgpu:reach ssm: SSH from outside needs Session Manager")
    if address == "nat" and _reach(config) == "ssm":
        raise _wrong("publicAddress", value, "private-nat: with cloudgpu:reach ssm, no node needs a public address")
    return address


def _reach(config: pulumi.Config) -> Reach:
    value = config.get("reach") or "direct"
    for reach in REACHES:
        if value == reach:
            return reach
    raise _wrong("reach", value, f"one of {', '.join(REACHES)}")


def _create_vpc(config: pulumi.Config, named: Named) -> bool:
    create = _flag(config, "createVpc", default="false")
    if create and (named.vpc_id or named.subnet_id or named.security_group_id):
        raise _wrong(
            "createVpc", "true", "false, since vpcId, subnetId or securityGroupId is set to an existing resource"
        )
    return create


def _flag(config: pulumi.Config, key: str, *, default: str) -> bool:
    value = config.get(key) or default
    if value not in ("true", "false"):
        raise _wrong(key, value, "true or false")
    return value == "true"


def _own_tags(config: pulumi.Config) -> dict[str, str]:
    """Parse the user's own tags, a JSON object of texts. Keys that this program or AWS sets are rejected."""
    value = config.get("tags") or "{}"
    try:
        tags: Any = json.loads(value)
    except ValueError as err:
        raise _wrong("tags", value, "a JSON object") from err
    if not isinstance(tags, dict) or not all(isinstance(text, str) for text in tags.values()):
        raise _wrong("tags", value, "a JSON object whose values are texts")
    if any(key.lower().startswith(("aws:", "cloudgpu:")) or key.lower() == "name" for key in tags):
        raise _wrong("tags", value, "no key Name, aws:... or cloudgpu:..., which are reserved")
    return tags


def cluster_tags(args: ClusterArgs) -> dict[str, str]:
    """Return the tags that identify the cluster's resources even if every local record is lost."""
    return {
        **args.tags,
        "Name": f"cloudgpu-{args.cluster}",
        "cloudgpu:cluster": args.cluster,
        "cloudgpu:owner": args.owner,
        "cloudgpu:team": args.team,
        "cloudgpu:run": args.run,
        "cloudgpu:expires-at": args.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cloudgpu:token": args.token,
    }
