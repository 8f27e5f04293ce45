"""Find and delete all resources with a cluster's tag, independently of local records."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any, Final, get_args

from cloudgpu import bounds
from cloudgpu.aws.ec2.instances import terminate
from cloudgpu.aws.ec2.tagging import LISTINGS, TERMINATED_STATES, ResourceListing, SearchResult, tags_to_dict
from cloudgpu.aws.resources.fleet import FLEET_TAG
from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.resources.registry import handler
from cloudgpu.aws.resources.schedules import DELETING, group_tags
from cloudgpu.aws.session.errors import UNREACHABLE, convert_errors, convert_response_errors, is_gone, is_in_use
from cloudgpu.aws.session.eventual_consistency import poll, retry
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.cloud import CLUSTER_TAG, GLOBAL, TOKEN_TAG, Kind, TaggedResource
from cloudgpu.errors import CloudGpuError, TeardownError, decisive_cause
from cloudgpu.text import plural
from cloudgpu.workers import Workers

_AT_ONCE = 6
_RELEASE_S = 600
_AWS_OWNER = "amazon"
"""Owner of the public addresses that AWS assigns to instances."""
_NAME_PREFIX = "cloudgpu-"
"""Name prefix by which IAM resources and schedule groups are searched, because neither service can search by tag."""

_Query = Callable[[], list[TaggedResource]]

_ORDER: Mapping[Kind, int] = {kind: place for place, kind in enumerate(get_args(Kind))}

_HANDLER_TYPES: Mapping[Kind, str] = {
    "fleet": "aws:ec2/fleet:Fleet",
    "nat-gateway": "aws:ec2/natGateway:NatGateway",
    "elastic-ip": "aws:ec2/eip:Eip",
    "launch-template": "aws:ec2/launchTemplate:LaunchTemplate",
    "placement-group": "aws:ec2/placementGroup:PlacementGroup",
    "schedule-group": "aws:scheduler/scheduleGroup:ScheduleGroup",
    "instance-profile": "aws:iam/instanceProfile:InstanceProfile",
    "role": "aws:iam/role:Role",
    "security-group": "aws:ec2/securityGroup:SecurityGroup",
    "key-pair": "aws:ec2/keyPair:KeyPair",
    "vpc-endpoint": "aws:ec2/vpcEndpoint:VpcEndpoint",
    "route-table": "aws:ec2/routeTable:RouteTable",
    "subnet": "aws:ec2/subnet:Subnet",
    "internet-gateway": "aws:ec2/internetGateway:InternetGateway",
    "vpc": "aws:ec2/vpc:Vpc",
}


def find_tagged_resources(clients: Clients, cluster: str, token: str | None = None) -> tuple[TaggedResource, ...]:
    """Find all resources with the cluster's tag (and token) in this region and in IAM, in deletion order.

    A fleet whose instances have all terminated is found for only about an hour, while AWS still lists the instances.
    """
    return _in_order(search_region(clients, cluster, token).merged(search_iam(clients, cluster, token)).complete())


def search_region(clients: Clients, cluster: str = "", token: str | None = None) -> SearchResult:
    """Search this region for resources with the cluster's tag (and token). By default, match any cluster.

    If some queries fail, the result still contains the resources that the other queries found, and the first error.
    """
    tags = _required_tags(cluster, token)
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]
    filters = filters or [{"Name": "tag-key", "Values": [CLUSTER_TAG]}]
    found, errors = _answered(_regional(clients, filters, f"{_NAME_PREFIX}{cluster}"))
    existing, fleet_errors = _existing(clients, found)
    errors += fleet_errors
    return SearchResult(
        _in_order(_tagged(existing, tags)),
        {clients.region: errors[0]} if errors else {},
        tuple(
            _tagged(
                (resource for resource in found if resource.kind == "instance" and resource.state in TERMINATED_STATES),
                tags,
            )
        ),
    )


def search_iam(clients: Clients, cluster: str = "", token: str | None = None) -> SearchResult:
    """Search IAM, which is not regional, in the same way as `search_region`."""
    prefix = f"{_NAME_PREFIX}{cluster}"
    found, errors = _answered([lambda: list(_roles(clients, prefix)), lambda: list(_profiles(clients, prefix))])
    tagged = _in_order(_tagged(found, _required_tags(cluster, token)))
    return SearchResult(tagged, {GLOBAL: errors[0]} if errors else {})


ENABLED_EVERYWHERE: Final = "us-east-1"
"""Region that no account can disable."""


def enabled_regions(clients: Clients) -> tuple[str, ...]:
    """Return every region that is enabled for the account."""
    with convert_response_errors("listing the enabled regions"):
        return tuple(sorted(region["RegionName"] for region in clients.client("ec2").describe_regions()["Regions"]))


def release(clients: Clients, resources: Sequence[TaggedResource], clock: Clock) -> None:
    """Delete resources in dependency order. Resources that no longer exist count as deleted."""
    undeleted: list[str] = []
    reasons: list[CloudGpuError] = []
    ordered = sorted(resources, key=lambda resource: (_ORDER[resource.kind], resource.id))
    for _, same_kind in groupby(ordered, key=lambda resource: resource.kind):
        for resource, err in _delete_all(clients, list(same_kind), clock):
            undeleted.append(f"{resource.label}: {err.message}")
            reasons.append(err)
    if undeleted:
        message = f"{len(undeleted)} of {plural(len(resources), 'resource')} could not be deleted"
        raise TeardownError(message, left=undeleted, hint="run the same command again") from decisive_cause(reasons)


def _regional(clients: Clients, filters: list[dict[str, Any]], prefix: str) -> list[_Query]:
    """Return one query per regional resource type. Schedule groups are searched by name prefix, all others by tag."""
    queries = [_query(clients, listing, filters) for listing in LISTINGS]
    return [*queries, lambda: list(_schedule_groups(clients, prefix))]


def _required_tags(cluster: str, token: str | None) -> dict[str, str]:
    cluster_tag = {CLUSTER_TAG: cluster} if cluster else {}
    return cluster_tag | ({TOKEN_TAG: token} if token else {})


def _tagged(resources: Iterable[TaggedResource], tags: Mapping[str, str]) -> list[TaggedResource]:
    return [
        resource for resource in resources if CLUSTER_TAG in resource.tags and tags.items() <= resource.tags.items()
    ]


def _existing(
    clients: Clients, resources: Sequence[TaggedResource]
) -> tuple[list[TaggedResource], list[CloudGpuError]]:
    """Return the resources that still exist, with their fleets, and the errors from failed fleet queries.

    The fleets include active fleets whose instances have all terminated.
    """
    existing = [
        resource for resource in resources if resource.kind != "instance" or resource.state not in TERMINATED_STATES
    ]
    known_fleets = _fleets(clients, existing)
    known_ids = {resource.id for resource in known_fleets}
    uncertain = [resource for resource in _fleets(clients, resources) if resource.id not in known_ids]
    active: list[TaggedResource] = []
    errors: list[CloudGpuError] = []
    for resource in uncertain:
        try:
            active += [resource] if _is_active(clients, resource.id) else []
        except CloudGpuError as err:
            errors.append(err)
    return [*existing, *known_fleets, *active], errors


def _answered(queries: Sequence[_Query]) -> tuple[list[TaggedResource], list[CloudGpuError]]:
    """Run the queries concurrently, and return the resources that they found and the errors that they raised.

    Once a query finds that AWS is unreachable, skip the remaining queries, each of which would also time out.
    """
    unreachable: list[CloudGpuError] = []

    def run(query: _Query) -> list[TaggedResource] | CloudGpuError:
        if unreachable:
            return unreachable[0]
        try:
            return query()
        except CloudGpuError as err:
            if getattr(err, "code", "") == UNREACHABLE:
                unreachable.append(err)
            return err

    with Workers(_AT_ONCE) as workers:
        results = list(workers.map(run, queries))
    resources = [resource for result in results if not isinstance(result, CloudGpuError) for resource in result]
    return resources, [result for result in results if isinstance(result, CloudGpuError)]


def _in_order(resources: Iterable[TaggedResource]) -> tuple[TaggedResource, ...]:
    return tuple(sorted(resources, key=lambda resource: (_ORDER[resource.kind], resource.id)))


def _query(clients: Clients, listing: ResourceListing, filters: list[dict[str, Any]]) -> _Query:
    def run() -> list[TaggedResource]:
        with convert_response_errors(f"searching {clients.region} for resources of type {listing.kind}"):
            return [_found(clients, listing, entry) for entry in listing.ask(clients.client("ec2"), filters)]

    return run


def _found(clients: Clients, listing: ResourceListing, entry: Mapping[str, Any]) -> TaggedResource:
    tags = tags_to_dict(entry.get("Tags") or entry.get("TagSet"))
    name = tags.get("Name") or entry.get("GroupName") or entry.get("LaunchTemplateName") or ""
    since = entry.get("LaunchTime") or entry.get("CreateTime") or entry.get("CreationTimestamp")
    is_instance = listing.kind == "instance"
    return TaggedResource(
        listing.kind,
        entry[listing.id_key],
        clients.region,
        name,
        tags,
        listing.state(entry),
        since=_within_calendar(since),
        instance_type=entry.get("InstanceType", "") if is_instance else "",
        market=(entry.get("InstanceLifecycle") or "on-demand") if is_instance else "",
        public_addresses=_addresses_of_aws(entry) if is_instance else 0,
        volume_type=entry.get("VolumeType", "") if listing.kind == "volume" else "",
        size_gib=entry.get("Size") if listing.kind == "volume" else None,
    )


def _addresses_of_aws(instance: Mapping[str, Any]) -> int:
    """Count an instance's public IPv4 addresses that belong to AWS. An Elastic IP belongs to the account."""
    associations = [interface.get("Association") or {} for interface in instance.get("NetworkInterfaces") or ()]
    return sum(association.get("IpOwnerId") == _AWS_OWNER for association in associations)


def _within_calendar(since: object) -> datetime | None:
    """Return a creation time, or None if it is not plausible."""
    try:
        return bounds.to_utc(since) if isinstance(since, datetime) else None
    except ValueError:
        return None


def _fleets(clients: Clients, resources: Iterable[TaggedResource]) -> list[TaggedResource]:
    """Find fleets through their instances because AWS lists `instant` fleets only by ID."""
    of_fleets = {
        resource.tags[FLEET_TAG]: resource
        for resource in resources
        if resource.kind == "instance" and FLEET_TAG in resource.tags
    }
    return [
        TaggedResource("fleet", fleet_id, clients.region, resource.name, resource.tags)
        for fleet_id, resource in of_fleets.items()
    ]


def _is_active(clients: Clients, fleet_id: str) -> bool:
    try:
        with convert_response_errors(f"describing fleet {fleet_id}"):
            fleets = clients.client("ec2").describe_fleets(FleetIds=[fleet_id])["Fleets"]
            states = [str(fleet.get("FleetState", "")) for fleet in fleets]
    except CloudGpuError as err:
        if is_gone(err):
            return False
        raise
    return any(not state.startswith("deleted") for state in states)


def _roles(clients: Clients, prefix: str) -> Iterator[TaggedResource]:
    iam = clients.client("iam")
    with convert_response_errors("searching IAM for roles"):
        pages = iam.get_paginator("list_roles").paginate()
        names = [role["RoleName"] for page in pages for role in page["Roles"] if role["RoleName"].startswith(prefix)]
    for name in names:
        tags = _iam_tags(partial(iam.list_role_tags, RoleName=name))
        if tags is not None:
            yield TaggedResource("role", name, GLOBAL, name, tags)


def _profiles(clients: Clients, prefix: str) -> Iterator[TaggedResource]:
    iam = clients.client("iam")
    with convert_response_errors("searching IAM for instance profiles"):
        pages = iam.get_paginator("list_instance_profiles").paginate()
        names = [profile["InstanceProfileName"] for page in pages for profile in page["InstanceProfiles"]]
    for name in (profile for profile in names if profile.startswith(prefix)):
        tags = _iam_tags(partial(_profile, iam, name))
        if tags is not None:
            yield TaggedResource("instance-profile", name, GLOBAL, name, tags)


def _schedule_groups(clients: Clients, prefix: str) -> Iterator[TaggedResource]:
    scheduler = clients.client("scheduler")
    with convert_response_errors(f"searching {clients.region} for schedule groups"):
        # A cluster tag may contain characters that a group name cannot contain, and AWS rejects such a prefix.
        usable = re.match(r"[0-9A-Za-z_.-]{0,64}", prefix, re.ASCII)
        pages = scheduler.get_paginator("list_schedule_groups").paginate(
            NamePrefix=usable[0] if usable else _NAME_PREFIX
        )
        groups = [group for page in pages for group in page["ScheduleGroups"] if group.get("State") != DELETING]
        names = [str(group["Name"]) for group in groups]
    for name, group in zip(names, groups, strict=True):
        yield TaggedResource("schedule-group", name, clients.region, name, group_tags(clients, group))


def _profile(iam: Any, name: str) -> Mapping[str, Any]:  # noqa: ANN401
    profile: Mapping[str, Any] = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    return profile


def _iam_tags(fetch: Callable[[], Mapping[str, Any]]) -> dict[str, str] | None:
    """Return the tags of an IAM resource, or None if the resource was deleted after it was listed."""
    try:
        with convert_response_errors("reading IAM tags"):
            return tags_to_dict(fetch().get("Tags"))
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise


def _delete_all(
    clients: Clients, resources: list[TaggedResource], clock: Clock
) -> list[tuple[TaggedResource, CloudGpuError]]:
    """Delete resources of one type. Return every resource that could not be deleted, with the error."""
    if resources[0].kind == "instance":
        return _failures(
            resources, lambda _: terminate(clients, clock, [resource.id for resource in resources]), together=True
        )
    if resources[0].kind in ("volume", "network-interface"):
        resources = _remaining(clients, resources)
    with Workers(_AT_ONCE) as workers:
        results = workers.map(
            lambda resource: _failures([resource], lambda target: _delete(clients, target, clock), together=False),
            resources,
        )
        return [failure for failures in results for failure in failures]


def _failures(
    resources: list[TaggedResource], delete: Callable[[TaggedResource], None], *, together: bool
) -> list[tuple[TaggedResource, CloudGpuError]]:
    try:
        delete(resources[0])
    except CloudGpuError as err:
        return [(resource, err) for resource in (resources if together else resources[:1])]
    return []


def _remaining(clients: Clients, resources: list[TaggedResource]) -> list[TaggedResource]:
    """Return the volumes and network interfaces that still exist.

    EC2 deletes most volumes and interfaces with their instances, so this query saves many delete calls.
    """
    listing = next(listing for listing in LISTINGS if listing.kind == resources[0].kind)
    name = f"{listing.kind}-id"
    existing: set[str] = set()
    for start in range(0, len(resources), 200):
        ids = [resource.id for resource in resources[start : start + 200]]
        with convert_response_errors(f"checking which resources of type {listing.kind} are left"):
            entries = listing.ask(clients.client("ec2"), [{"Name": name, "Values": ids}])
            existing |= {entry[listing.id_key] for entry in entries}
    return [resource for resource in resources if resource.id in existing]


def _delete(clients: Clients, resource: TaggedResource, clock: Clock) -> None:
    if resource.kind in _HANDLER_TYPES:
        handler(_HANDLER_TYPES[resource.kind]).delete(HandlerContext(clients, clock, "", {}), resource.id, {})
        return
    try:
        retry(clock, lambda: _send_delete(clients, resource), when=_is_attached, total_s=_RELEASE_S)
    except CloudGpuError as err:
        if not is_gone(err):
            raise
    poll(
        clock,
        lambda: not _remaining(clients, [resource]) or None,
        what=f"{resource.label} to be deleted",
        total_s=_RELEASE_S,
    )


def _is_attached(err: CloudGpuError) -> bool:
    """Return True if a volume or interface is still attached. For an interface, only the message reveals this."""
    return is_in_use(err) or "is currently in use" in err.message


def _send_delete(clients: Clients, resource: TaggedResource) -> None:
    ec2 = clients.client("ec2")
    with convert_errors(f"deleting {resource.label}"):
        if resource.kind == "volume":
            ec2.delete_volume(VolumeId=resource.id)
        else:
            ec2.delete_network_interface(NetworkInterfaceId=resource.id)
