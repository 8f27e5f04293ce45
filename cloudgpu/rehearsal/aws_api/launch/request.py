"""Launch requests merged with their launch templates."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, tags_for

_LAUNCH_TAGS = ("instance", "volume", "network-interface", "spot-instances-request")


@dataclass(frozen=True)
class MergedLaunchRequest:
    """A launch request merged with its launch template.

    `data` uses the parameter names of the API. `zone` and `subnet_id` may still be empty.
    """

    data: Mapping[str, Any]
    instance_type: str
    zone: str
    subnet_id: str
    market: str
    template: tuple[str, int] | None = None

    @property
    def interfaces(self) -> list[dict[str, Any]]:
        """The network interface specifications."""
        return [dict(row) for row in self.data.get("NetworkInterfaces") or []]

    @property
    def group_ids(self) -> list[str]:
        """IDs of the security groups that the request specifies for the instance instead of for an interface."""
        return [str(value) for value in self.data.get("SecurityGroupIds") or []]

    @property
    def key_name(self) -> str:
        """The name of the key pair, or an empty string."""
        return str(self.data.get("KeyName") or "")

    @property
    def placement_group(self) -> str:
        """The name or id of the placement group, or an empty string."""
        placement = self.data.get("Placement") or {}
        return str(placement.get("GroupName") or placement.get("GroupId") or "")

    @property
    def reservation(self) -> str:
        """The id of the requested capacity reservation, or an empty string."""
        specification = self.data.get("CapacityReservationSpecification") or {}
        return str((specification.get("CapacityReservationTarget") or {}).get("CapacityReservationId") or "")

    @property
    def user_data(self) -> bytes:
        """The decoded user data."""
        try:
            return base64.b64decode(str(self.data.get("UserData") or ""), validate=True)
        except ValueError:  # also raised for non-ASCII characters
            raise AwsError("InvalidParameterValue", "Invalid BASE64 encoding of user data.") from None

    def tags(self, resource_type: str) -> dict[str, str]:
        """Return the tags that the request assigns to a resource type."""
        return tags_for(self.data.get("TagSpecifications"), resource_type)


def merge_template(
    call: ParsedRequest, request: Mapping[str, Any], specification: Mapping[str, Any] | None
) -> MergedLaunchRequest:
    """Merge a request with the launch template that it specifies."""
    base, template = template_data(call, specification)
    specified = {name: value for name, value in request.items() if value not in (None, [], {})}
    data = {**base, **specified}
    data["TagSpecifications"] = _merged_tags(base, specified)
    data["Placement"] = {**(base.get("Placement") or {}), **(specified.get("Placement") or {})}
    subnet = str(data.get("SubnetId") or "")
    if not subnet:
        subnet = next((str(row["SubnetId"]) for row in data.get("NetworkInterfaces") or [] if row.get("SubnetId")), "")
    market = str((data.get("InstanceMarketOptions") or {}).get("MarketType") or "on-demand")
    return MergedLaunchRequest(
        data=data,
        instance_type=str(data.get("InstanceType") or ""),
        zone=str(data["Placement"].get("AvailabilityZone") or ""),
        subnet_id=subnet,
        market=market,
        template=template,
    )


def template_data(
    call: ParsedRequest, specification: Mapping[str, Any] | None
) -> tuple[dict[str, Any], tuple[str, int] | None]:
    """Return the data of a template version, with the template's id and the version number.

    If no template is specified, the data is empty and the (id, version) pair is None.
    """
    if not specification:
        return {}, None
    if specification.get("LaunchTemplateId"):
        template = call.backend.get_launch_template(specification["LaunchTemplateId"])
    else:
        template = call.backend.get_launch_template_by_name(str(specification.get("LaunchTemplateName")))
    version = template.get_version(specification.get("Version") or "$Default")
    data = {name: value for name, value in version.data.items() if value not in (None, [], {})}
    return data, (template.id, version.number)


def _merged_tags(base: Mapping[str, Any], specified: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Merge the tag specifications of the template and the request; the request's tags take precedence.

    The template's own tags are omitted.
    """
    merged: list[dict[str, Any]] = []
    for resource_type in _LAUNCH_TAGS:
        tags = {
            **tags_for(base.get("TagSpecifications"), resource_type),
            **tags_for(specified.get("TagSpecifications"), resource_type),
        }
        if tags:
            rows = [{"Key": key, "Value": value} for key, value in tags.items()]
            merged.append({"ResourceType": resource_type, "Tags": rows})
    return merged
