"""Members that EC2 always returns and moto's models lack, set on the models when this module is imported.

Source: the recordings that `tests/rehearsal/fidelity/recorded_shapes.json` names. For the long name of a zone's group:
a published answer of AWS, in which it is `US East (Ohio) 1`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from botocore.loaders import Loader
from moto.ec2.models.amis import Ami
from moto.ec2.models.availability_zones_and_regions import Zone
from moto.ec2.models.elastic_block_store import VolumeAttachment
from moto.ec2.models.route_tables import RouteTable
from moto.ec2.models.security_groups import SecurityGroupRule

from cloudgpu.rehearsal.aws_api.rules import ParsedRequest, rule

_MODIFIED = ("size", "volume_type", "iops", "throughput")


@cache
def _region_names() -> Mapping[str, str]:
    """Return the long names of the regions, such as `US East (Ohio)`."""
    partitions = Loader().load_data("endpoints")["partitions"]
    return {
        name: str(region["description"]) for partition in partitions for name, region in partition["regions"].items()
    }


def _deleted_with_instance(attachment: Any) -> bool:  # noqa: ANN401 - moto's attachment
    devices = attachment.instance.block_device_mapping.values()
    return any(device.volume_id == attachment.volume_id and device.delete_on_termination for device in devices)


_DEFAULTS: Mapping[type, Mapping[str, Any]] = {
    RouteTable: {"propagating_vgws": []},
    SecurityGroupRule: {"group_owner_id": property(lambda row: row.ec2_backend.account_id)},
    VolumeAttachment: {"delete_on_termination": property(_deleted_with_instance)},
    Ami: {"sriov_net_support": property(lambda ami: ami.sriov)},
    Zone: {
        "group_long_name": property(lambda zone: f"{_region_names().get(zone.region_name, zone.region_name)} 1"),
        "group_name": property(lambda zone: f"{zone.region_name}-zg-1"),
        "network_border_group": property(lambda zone: zone.region_name),
        "opt_in_status": "opt-in-not-required",
    },
}

for _model, _members in _DEFAULTS.items():
    for _name, _value in _members.items():
        setattr(_model, _name, _value)


@rule("ModifyVolume")
def modify_volume(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Modify a volume as moto does, and report the properties that stay the same, too."""
    volume = call.backend.get_volume(str(call.params.get("VolumeId") or ""))
    before = {name: getattr(volume, name) for name in _MODIFIED}
    response = call.proceed()
    modification = volume.modifications[-1]
    for name, value in before.items():
        if getattr(modification, f"original_{name}") is None:
            setattr(modification, f"original_{name}", value)
            setattr(modification, f"target_{name}", getattr(volume, name))
    return response
