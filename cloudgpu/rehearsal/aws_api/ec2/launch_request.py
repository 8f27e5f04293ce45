"""Launch templates, launch requests merged with them, and the client tokens that make requests idempotent."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, Rules, paginate_rows, tags_for
from cloudgpu.rehearsal.aws_api.records import Records, SavedAnswer

RULES = Rules()
_MAX_SAVED = 5000

Key = tuple[str, str, str]
_LAUNCH_TAGS = ("instance", "volume", "network-interface", "spot-instances-request")
_TEMPLATE = "launch-template"
_TEMPLATES_PER_PAGE = 200
_TEMPLATE_NAME: Final = re.compile(r"[a-zA-Z0-9().\-/_]{3,128}")
"""Names that EC2 accepts: the shape `LaunchTemplateName` of botocore's service model."""


def response_key(action: str, params: dict[str, Any]) -> Key | None:
    """Return the key under which a call's response is saved, or None for dry runs and calls without a client token.

    As on AWS, the same token may be used for launches in different zones.
    """
    token = str(params.get("ClientToken") or "")
    if not token or params.get("DryRun"):
        return None
    zone = ""
    if action == "RunInstances":
        placement = params.get("Placement") or {}
        zone = str(placement.get("AvailabilityZone") or params.get("SubnetId") or "")
    return action, token, zone


def parameters_digest(params: dict[str, Any]) -> str:
    """Return a digest of all parameters except the client token."""
    rest = {name: value for name, value in params.items() if name != "ClientToken"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, default=str).encode()).hexdigest()


def find_saved_response(records: Records, key: Key, digest: str) -> SavedAnswer | None:
    """Return the saved response of the first call with this token, or None for a new token."""
    saved = records.answers.get(key)
    if saved is not None and saved.digest != digest:
        raise AwsError(
            "IdempotentParameterMismatch",
            "The client token you have provided is associated with a resource that was created with other parameters.",
        )
    return saved


def save_response(records: Records, key: Key, answer: SavedAnswer) -> None:
    """Save a response. Delete the oldest saved responses if there are more than the maximum."""
    records.answers[key] = answer
    while len(records.answers) > _MAX_SAVED:
        del records.answers[next(iter(records.answers))]


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


@RULES.action("CreateLaunchTemplate")
def create_launch_template(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Create a template as moto does, but check its name and store the tags for launched resources unchanged."""
    if not _TEMPLATE_NAME.fullmatch(str(call.params.get("LaunchTemplateName"))):
        message = (
            "A launch template name must be between 3 and 128 characters, and may contain letters, numbers, and the "
            "following characters: - ( ) . / _."
        )
        raise AwsError("InvalidLaunchTemplateName.MalformedException", message)
    if not call.params.get("LaunchTemplateData"):
        message = "No launch template data was provided. Launch template data is required to create a launch template."
        raise AwsError("MissingParameter", message)
    launch_tags = [dict(row) for row in call.params["LaunchTemplateData"].get("TagSpecifications") or []]
    response = call.proceed()
    template = call.backend.get_launch_template_by_name(str(call.params.get("LaunchTemplateName")))
    template.versions[0].data["TagSpecifications"] = [
        row for row in launch_tags if row.get("ResourceType") != _TEMPLATE
    ]
    return response


@RULES.action("DescribeLaunchTemplates")
def describe_launch_templates(call: ParsedRequest) -> dict[str, Any]:
    """Describe templates with pagination; moto truncates the list at 15 templates and does not return a token."""
    templates = call.backend.describe_launch_templates(
        template_names=call.texts("LaunchTemplateNames"),
        template_ids=call.texts("LaunchTemplateIds"),
        filters=call.filters(),
    )
    rows, token = paginate_rows(list(templates), call.params, limit=_TEMPLATES_PER_PAGE)
    descriptions = [{**_template_description(call, template), "Tags": template.get_tags()} for template in rows]
    return {"LaunchTemplates": descriptions, "NextToken": token}


@RULES.action("DeleteLaunchTemplate")
def delete_launch_template(call: ParsedRequest) -> dict[str, Any]:
    """Delete a template and describe it; moto returns only its names."""
    template = call.backend.delete_launch_template(
        call.params.get("LaunchTemplateName"), call.params.get("LaunchTemplateId")
    )
    return {"LaunchTemplate": _template_description(call, template)}


def _template_description(call: ParsedRequest, template: Any) -> dict[str, Any]:  # noqa: ANN401 - moto's template
    return {
        "CreateTime": template.create_time,
        "CreatedBy": f"arn:aws:iam::{call.backend.account_id}:root",
        "DefaultVersionNumber": template.default_version_number,
        "LatestVersionNumber": template.latest_version_number,
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
    }
