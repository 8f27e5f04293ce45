"""List resources that may cost money or be left over, in every region, from the internal state of the services.

Images, snapshots and capacity reservations are not listed.
"""

from typing import Any

from moto.core.base_backend import BackendDict
from moto.ec2.models import ec2_backends
from moto.efs.models import efs_backends
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends
from moto.scheduler.models import scheduler_backends

from cloudgpu.rehearsal.aws_api.fsx.records import region_file_systems
from cloudgpu.rehearsal.state.records import records_of

_RESOURCE_TYPES = (
    "instances", "volumes", "interfaces", "addresses", "nat_gateways", "endpoints", "gateways", "route_tables",
    "groups", "launch_templates", "fleets", "placement_groups", "key_pairs", "vpcs", "subnets", "roles",
    "instance_profiles", "buckets", "schedule_groups", "schedules",
)  # fmt: skip
_INACTIVE = frozenset({"deleted", "failed"})
"""States in which a NAT gateway is not billed and does not forward traffic."""


def file_systems() -> list[dict[str, Any]]:
    """Return all EFS and Lustre file systems, including Lustre file systems that are being deleted."""
    rows: list[dict[str, Any]] = []
    for _, region, backend in _iter(ec2_backends):
        rows += [
            {"region": region, "id": system.id, "tags": dict(system.tags)} for system in region_file_systems(backend)
        ]
    for _, region, backend in _iter(efs_backends):
        for name in backend.file_systems_by_id:
            tags = {row["Key"]: row["Value"] for row in backend.list_tags_for_resource(name)}
            rows.append({"region": region, "id": name, "tags": tags})
    return rows


def data_resource_ids() -> frozenset[str]:
    """Return the ids of all resources that may contain data written by nodes."""
    ids = {str(row["id"]) for row in file_systems()}
    ids |= {str(name) for _, _, backend in _iter(ec2_backends) for name in backend.volumes}
    return frozenset(ids | {str(name) for _, _, backend in _iter(s3_backends) for name in backend.buckets})


def _iter(backends: BackendDict[Any]) -> list[Any]:
    return list(backends.iter_backends())


def list_resources() -> dict[str, list[dict[str, Any]]]:
    """Return the resources by type, excluding default networks and inactive resources such as terminated instances."""
    resources: dict[str, list[dict[str, Any]]] = {resource_type: [] for resource_type in _RESOURCE_TYPES}
    for _, _, backend in list(ec2_backends.iter_backends()):
        for resource_type, rows in _of_region(backend).items():
            resources[resource_type] += [{"region": backend.region_name, **row} for row in rows]
    for _, _, backend in _iter(iam_backends):
        # Service-linked roles belong to the account.
        own = [role for role in backend.roles.values() if not role._linked_service]
        resources["roles"] += [_tagged(role.name, role) for role in own]
        resources["instance_profiles"] += [_tagged(row.name, row) for row in backend.instance_profiles.values()]
    for _, _, backend in _iter(scheduler_backends):
        for group in [group for group in backend.schedule_groups.values() if group.name != "default"]:
            # On AWS, schedule groups have tags but schedules do not, so report the group's tags for its schedules.
            row = {"region": backend.region_name, "tags": backend.tagger.get_tag_dict_for_resource(group.arn)}
            resources["schedule_groups"].append({"id": group.name, **row})
            resources["schedules"] += [{"id": f"{group.name}/{name}", **row} for name in group.schedules]
    for _, _, backend in _iter(s3_backends):
        resources["buckets"] += [{"id": name, "region": bucket.region_name} for name, bucket in backend.buckets.items()]
    resources["file_systems"] = file_systems()
    return resources


def _is_main(table: Any) -> bool:  # noqa: ANN401 - moto is untyped
    """Return True if the route table is a VPC's main table, which is created and deleted with the VPC."""
    return str(table.main_association_id or "") != ""


def _of_region(backend: Any) -> dict[str, list[dict[str, Any]]]:  # noqa: ANN401 - moto is untyped
    records = records_of(backend)
    tags = backend.tags

    def row(physical_id: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
        return {"id": physical_id, "tags": dict(tags.get(physical_id, {})), **more}

    groups = [group for groups in backend.groups.values() for group in groups.values() if group.name != "default"]
    subnets = [subnet for zone in backend.subnets.values() for subnet in zone.values()]
    return {
        "instances": [
            row(i.id, state=i.state, instance_type=i.instance_type)
            for i in backend.all_instances()
            if i.state != "terminated"
        ],
        "volumes": [row(name) for name in backend.volumes],
        "interfaces": [row(name) for name in backend.enis],
        "addresses": [row(address.allocation_id) for address in backend.addresses],
        "nat_gateways": [row(name) for name, gateway in backend.nat_gateways.items() if gateway.state not in _INACTIVE],
        "endpoints": [row(name) for name, point in backend.vpc_end_points.items() if point.state != "deleted"],
        "gateways": [row(name) for name in backend.internet_gateways],
        "route_tables": [row(name) for name, table in backend.route_tables.items() if not _is_main(table)],
        "groups": [row(group.id, name=group.name) for group in groups],
        "launch_templates": [row(name, name=item.name) for name, item in backend.launch_templates.items()],
        "fleets": [row(name) for name, fleet in records.fleets.items() if not fleet.deleted],
        "placement_groups": [row(group.id, name=group.name) for group in records.placement_groups.values()],
        "key_pairs": [row(pair.id, name=pair.key_name) for pair in backend.key_pairs.values()],
        "vpcs": [row(vpc.id) for vpc in backend.vpcs.values() if not vpc.is_default],
        "subnets": [row(subnet.id) for subnet in subnets if str(subnet.default_for_az).lower() != "true"],
    }


def _tagged(name: str, item: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an inventory entry with a name and tags.

    Moto stores the tags of roles and profiles as a list or a mapping, depending on the call that set them.
    """
    tags = getattr(item, "tags", None) or {}
    rows = tags.values() if isinstance(tags, dict) else tags
    return {"id": name, "tags": {row["Key"]: row["Value"] for row in rows}}
