"""Find and delete everything with a cluster's tag, independently of all records."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any, get_args

from cloudgpu import bounds
from cloudgpu.aws.ec2.instances import ENDED, terminate
from cloudgpu.aws.ec2.tagged_types import GLOBAL, LISTINGS, FoundResource, Kind, ResourceListing, SearchResult
from cloudgpu.aws.ec2.tagging import CLUSTER, TOKEN, mapped
from cloudgpu.aws.resources.base import HandlerContext
from cloudgpu.aws.resources.fleet import FLEET_TAG
from cloudgpu.aws.resources.registry import handler
from cloudgpu.aws.resources.schedule_group import DELETING, tags_of
from cloudgpu.aws.session.errors import UNREACHABLE, answered, is_gone, is_in_use, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import awaited, retried
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError, TeardownError

_AT_ONCE = 6
_RELEASE_S = 600
_NAMED = "cloudgpu-"
"""Every IAM name of ours starts with it: IAM cannot be searched by tag, and listing all tags of all roles is slow."""

Question = Callable[[], list[FoundResource]]

_ORDER: Mapping[Kind, int] = {kind: place for place, kind in enumerate(get_args(Kind))}

_HANDLED: Mapping[Kind, str] = {
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


def everything(clients: Clients, cluster: str, token: str | None = None) -> tuple[FoundResource, ...]:
    """Return everything with the cluster's tag (and token) in this region and in IAM, in deletion order.

    A fleet whose instances have all terminated is found while AWS still lists them, for about an hour.

    Raises:
        CloudError: A request failed, so nothing may be assumed to be deleted.
    """
    return _in_order(search_region(clients, cluster, token).merged(search_iam(clients, cluster, token)).complete())


def search_region(clients: Clients, cluster: str = "", token: str | None = None) -> SearchResult:
    """Search this region for all that carries the cluster's tag (and its token), or the tag of any cluster.

    A question that is not answered never hides what the others found: its error is in the result.
    """
    wanted = _wanted(cluster, token)
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in wanted.items()]
    filters = filters or [{"Name": "tag-key", "Values": [CLUSTER]}]
    found, errors = _answered(_regional(clients, filters, f"{_NAMED}{cluster}"))
    living, unsure = _living(clients, found)
    errors += unsure
    return SearchResult(
        _in_order(_tagged(living, wanted)),
        {clients.region: errors[0]} if errors else {},
        tuple(
            _tagged((resource for resource in found if resource.kind == "instance" and resource.state in ENDED), wanted)
        ),
    )


def search_iam(clients: Clients, cluster: str = "", token: str | None = None) -> SearchResult:
    """Search IAM, which belongs to no region, likewise."""
    found, errors = _answered(_in_iam(clients, f"{_NAMED}{cluster}"))
    tagged = _in_order(_tagged(found, _wanted(cluster, token)))
    return SearchResult(tagged, {GLOBAL: errors[0]} if errors else {})


def enabled_regions(clients: Clients) -> tuple[str, ...]:
    """Return every region that is enabled for the account.

    Raises:
        CloudError: AWS refused or cannot be reached.
    """
    with answered("asking which regions are enabled"):
        return tuple(sorted(region["RegionName"] for region in clients.client("ec2").describe_regions()["Regions"]))


def release(clients: Clients, found: Sequence[FoundResource], clock: Clock) -> None:
    """Delete resources in dependency order. Resources that no longer exist count as deleted.

    Raises:
        TeardownError: Something could not be deleted or confirmed; `left` lists it. The rest was deleted.
    """
    left: list[str] = []
    reasons: list[CloudGpuError] = []
    ordered = sorted(found, key=lambda resource: (_ORDER[resource.kind], resource.id))
    for _, same_kind in groupby(ordered, key=lambda resource: resource.kind):
        for resource, err in _released(clients, list(same_kind), clock):
            left.append(f"{resource.label}: {err.message}")
            reasons.append(err)
    if left:
        message = f"{len(left)} of {len(found)} resources could not be deleted"
        raise TeardownError(message, left=left, hint="run the same command again") from reasons[0]


def _regional(clients: Clients, filters: list[dict[str, Any]], prefix: str) -> list[Question]:
    """Return one query per resource type.

    Resources that cannot be searched by tag have a name that starts with `prefix`.
    """
    questions = [_question(clients, listing, filters) for listing in LISTINGS]
    return [*questions, lambda: list(_schedule_groups(clients, prefix))]


def _wanted(cluster: str, token: str | None) -> dict[str, str]:
    named = {CLUSTER: cluster} if cluster else {}
    return named | ({TOKEN: token} if token else {})


def _tagged(found: Iterable[FoundResource], wanted: Mapping[str, str]) -> list[FoundResource]:
    return [resource for resource in found if CLUSTER in resource.tags and wanted.items() <= resource.tags.items()]


def _living(clients: Clients, found: Sequence[FoundResource]) -> tuple[list[FoundResource], list[CloudGpuError]]:
    """Return the resources that still exist, including fleets that still exist after their instances terminated.

    Also returns the errors of fleet queries that failed.
    """
    living = [resource for resource in found if resource.kind != "instance" or resource.state not in ENDED]
    sure = _fleets(clients, living)
    known = {resource.id for resource in sure}
    doubtful = [resource for resource in _fleets(clients, found) if resource.id not in known]
    empty: list[FoundResource] = []
    errors: list[CloudGpuError] = []
    for resource in doubtful:
        try:
            empty += [resource] if _is_active(clients, resource.id) else []
        except CloudGpuError as err:
            errors.append(err)
    return [*living, *sure, *empty], errors


def _in_iam(clients: Clients, prefix: str) -> list[Question]:
    return [lambda: list(_roles(clients, prefix)), lambda: list(_profiles(clients, prefix))]


def _answered(questions: Sequence[Question]) -> tuple[list[FoundResource], list[CloudGpuError]]:
    """Ask everything at once: the questions are independent, and one after the other they take seconds.

    Where the first of them cannot be reached the later ones are not sent: each would wait for its time-outs again.
    """
    unreachable: list[CloudGpuError] = []

    def answer(question: Question) -> list[FoundResource] | CloudGpuError:
        if unreachable:
            return unreachable[0]
        try:
            return question()
        except CloudGpuError as err:
            if getattr(err, "code", "") == UNREACHABLE:
                unreachable.append(err)
            return err

    with ThreadPoolExecutor(_AT_ONCE) as workers:
        answers = list(workers.map(answer, questions))
    found = [resource for got in answers if not isinstance(got, CloudGpuError) for resource in got]
    return found, [got for got in answers if isinstance(got, CloudGpuError)]


def _in_order(found: Iterable[FoundResource]) -> tuple[FoundResource, ...]:
    return tuple(sorted(found, key=lambda resource: (_ORDER[resource.kind], resource.id)))


def _question(clients: Clients, listing: ResourceListing, filters: list[dict[str, Any]]) -> Question:
    def ask() -> list[FoundResource]:
        with answered(f"searching {clients.region} for anything of kind {listing.kind}"):
            return [_found(clients, listing, entry) for entry in listing.ask(clients.client("ec2"), filters)]

    return ask


def _found(clients: Clients, listing: ResourceListing, entry: Mapping[str, Any]) -> FoundResource:
    tags = mapped(entry.get("Tags") or entry.get("TagSet"))
    name = tags.get("Name") or entry.get("GroupName") or entry.get("LaunchTemplateName") or ""
    since = entry.get("LaunchTime") or entry.get("CreateTime") or entry.get("CreationTimestamp")
    return FoundResource(
        listing.kind,
        entry[listing.id_key],
        clients.region,
        name,
        tags,
        listing.state(entry),
        since=_within_calendar(since),
        instance_type=entry.get("InstanceType", "") if listing.kind == "instance" else "",
        market=(entry.get("InstanceLifecycle") or "on-demand") if listing.kind == "instance" else "",
        volume_type=entry.get("VolumeType", "") if listing.kind == "volume" else "",
        size_gib=entry.get("Size") if listing.kind == "volume" else None,
    )


def _within_calendar(since: object) -> datetime | None:
    """Return a creation time, or None if it is not plausible."""
    try:
        return bounds.within_calendar(since) if isinstance(since, datetime) else None
    except ValueError:
        return None


def _fleets(clients: Clients, found: Iterable[FoundResource]) -> list[FoundResource]:
    """Find fleets through their instances, because AWS lists `instant` fleets only by ID."""
    of_fleets = {
        resource.tags[FLEET_TAG]: resource
        for resource in found
        if resource.kind == "instance" and FLEET_TAG in resource.tags
    }
    return [
        FoundResource("fleet", fleet_id, clients.region, resource.name, resource.tags)
        for fleet_id, resource in of_fleets.items()
    ]


def _is_active(clients: Clients, fleet_id: str) -> bool:
    try:
        with answered(f"looking at fleet {fleet_id}"):
            fleets = clients.client("ec2").describe_fleets(FleetIds=[fleet_id])["Fleets"]
            states = [str(fleet.get("FleetState", "")) for fleet in fleets]
    except CloudGpuError as err:
        if is_gone(err):
            return False
        raise
    return any(not state.startswith("deleted") for state in states)


def _roles(clients: Clients, prefix: str) -> Iterator[FoundResource]:
    iam = clients.client("iam")
    with answered("searching IAM for roles"):
        pages = iam.get_paginator("list_roles").paginate()
        names = [role["RoleName"] for page in pages for role in page["Roles"] if role["RoleName"].startswith(prefix)]
    for name in names:
        tags = _iam_tags(partial(iam.list_role_tags, RoleName=name))
        if tags is not None:
            yield FoundResource("role", name, GLOBAL, name, tags)


def _profiles(clients: Clients, prefix: str) -> Iterator[FoundResource]:
    iam = clients.client("iam")
    with answered("searching IAM for example profiles"):
        pages = iam.get_paginator("list_instance_profiles").paginate()
        found = [profile["InstanceProfileName"] for page in pages for profile in page["InstanceProfiles"]]
    for name in (profile for profile in found if profile.startswith(prefix)):
        tags = _iam_tags(partial(_profile, iam, name))
        if tags is not None:
            yield FoundResource("instance-profile", name, GLOBAL, name, tags)


def _schedule_groups(clients: Clients, prefix: str) -> Iterator[FoundResource]:
    scheduler = clients.client("scheduler")
    with answered(f"searching {clients.region} for schedule groups"):
        # A cluster's tag may hold what no name of a group can, and AWS refuses such a prefix.
        usable = re.match(r"[0-9A-Za-z_.-]{0,64}", prefix, re.ASCII)
        pages = scheduler.get_paginator("list_schedule_groups").paginate(NamePrefix=usable[0] if usable else _NAMED)
        groups = [group for page in pages for group in page["ScheduleGroups"] if group.get("State") != DELETING]
        names = [str(group["Name"]) for group in groups]
    for name, group in zip(names, groups, strict=True):
        yield FoundResource("schedule-group", name, clients.region, name, tags_of(clients, group))


def _profile(iam: Any, name: str) -> Mapping[str, Any]:  # noqa: ANN401
    found: Mapping[str, Any] = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    return found


def _iam_tags(ask: Callable[[], Mapping[str, Any]]) -> dict[str, str] | None:
    """Return the tags, or None if the resource was deleted after it was listed."""
    try:
        with answered("reading tags in IAM"):
            return mapped(ask().get("Tags"))
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise


def _released(clients: Clients, found: list[FoundResource], clock: Clock) -> list[tuple[FoundResource, CloudGpuError]]:
    """End things of one kind; returns those that would not end, and why."""
    if found[0].kind == "instance":
        return _tried(found, lambda _: terminate(clients, clock, [resource.id for resource in found]), together=True)
    if found[0].kind in ("volume", "network-interface"):
        found = _remaining(clients, found)
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        answers = workers.map(
            lambda resource: _tried([resource], lambda it: _end(clients, it, clock), together=False), found
        )
        return [failure for answer in answers for failure in answer]


def _tried(
    found: list[FoundResource], end: Callable[[FoundResource], None], *, together: bool
) -> list[tuple[FoundResource, CloudGpuError]]:
    try:
        end(found[0])
    except CloudGpuError as err:
        return [(resource, err) for resource in (found if together else found[:1])]
    return []


def _remaining(clients: Clients, found: list[FoundResource]) -> list[FoundResource]:
    """Return the disks and interfaces that did not disappear with their instances.

    This saves one call for each that did.
    """
    listing = next(listing for listing in LISTINGS if listing.kind == found[0].kind)
    name = f"{listing.kind}-id"
    alive: set[str] = set()
    for start in range(0, len(found), 200):
        ids = [resource.id for resource in found[start : start + 200]]
        with answered(f"looking at what is left of kind {listing.kind}"):
            entries = listing.ask(clients.client("ec2"), [{"Name": name, "Values": ids}])
            alive |= {entry[listing.id_key] for entry in entries}
    return [resource for resource in found if resource.id in alive]


def _end(clients: Clients, resource: FoundResource, clock: Clock) -> None:
    if resource.kind in _HANDLED:
        handler(_HANDLED[resource.kind]).delete(HandlerContext(clients, clock, "", {}), resource.id, {})
        return
    try:
        retried(clock, lambda: _call(clients, resource), when=_is_held, total_s=_RELEASE_S)
    except CloudGpuError as err:
        if not is_gone(err):
            raise
    awaited(
        clock, lambda: not _remaining(clients, [resource]) or None, what=f"{resource.label} to go", total_s=_RELEASE_S
    )


def _is_held(err: CloudGpuError) -> bool:
    """Return True if an interface is still attached, which AWS reports only in the text of a parameter error."""
    return is_in_use(err) or "is currently in use" in err.message


def _call(clients: Clients, resource: FoundResource) -> None:
    ec2 = clients.client("ec2")
    with typed(f"ending {resource.label}"):
        if resource.kind == "volume":
            ec2.delete_volume(VolumeId=resource.id)
        else:
            ec2.delete_network_interface(NetworkInterfaceId=resource.id)
