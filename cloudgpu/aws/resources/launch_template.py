"""Handler for `aws:ec2/launchTemplate:LaunchTemplate`."""

import hashlib
import json
from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import retag, tag_specification, tags_to_dict
from cloudgpu.aws.resources.base import ExistingResource, HandlerContext, Properties
from cloudgpu.aws.resources.described import (
    DescribedHandler,
    all_tags,
    changed_tags,
    is_ours,
    require_existing,
    tag_outputs,
)
from cloudgpu.aws.resources.launch_data import DATA, NESTED, launch_template_data
from cloudgpu.aws.session.errors import convert_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudGpuError

_TOKEN_CHARACTERS = 64
"""EC2's limit on the length of a client token."""


class LaunchTemplateHandler(DescribedHandler):
    """Handler for launch templates. A change creates a new version and does not affect running instances."""

    type: ClassVar[str] = "aws:ec2/launchTemplate:LaunchTemplate"
    accepts = frozenset({*DATA, "name", "description", "updateDefaultVersion", "defaultVersion"})
    requires = frozenset({"name"})
    replaced_by = frozenset({"name"})
    nested = NESTED

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the template with its first version."""
        name = inputs["name"]
        request = {
            "ClientToken": ctx.token,
            "LaunchTemplateName": name,
            "LaunchTemplateData": launch_template_data(inputs),
            "TagSpecifications": [tag_specification("launch-template", all_tags(ctx, inputs))],
            **_description(inputs),
        }
        with convert_errors(f"creating launch template {name}"):
            template = ctx.clients.client("ec2").create_launch_template(**request)["LaunchTemplate"]
        return _physical(template, inputs, ctx.clients.region)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the template left behind by an interrupted `create` with this token, or None if there is none."""
        template = _described(ctx.clients, LaunchTemplateNames=[inputs["name"]])
        if not template or not is_ours(ctx, tags_to_dict(template.get("Tags"))):
            return None
        return _physical(template, inputs, ctx.clients.region)

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the template does not exist."""
        template = _described(ctx.clients, LaunchTemplateIds=[physical_id])
        if not template:
            return None
        return _physical(template, {"tags": tags_to_dict(template.get("Tags"))}, ctx.clients.region)

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Create a new version if the launch data changed, and change the default version if requested."""
        ec2 = ctx.clients.client("ec2")
        retag(ctx.clients, physical_id, changed_tags(ctx, old), changed_tags(ctx, new))
        default = new.get("defaultVersion")
        with convert_errors(f"changing launch template {physical_id}"):
            if launch_template_data(old) != launch_template_data(new) or _description(old) != _description(new):
                version = ec2.create_launch_template_version(
                    ClientToken=_version_token(ctx.token, new),
                    LaunchTemplateId=physical_id,
                    LaunchTemplateData=launch_template_data(new),
                    **_description(new),
                )["LaunchTemplateVersion"]["VersionNumber"]
                default = version if new.get("updateDefaultVersion") else default
            if default:
                ec2.modify_launch_template(LaunchTemplateId=physical_id, DefaultVersion=str(int(default)))
        template = require_existing(
            _described(ctx.clients, LaunchTemplateIds=[physical_id]), f"launch template {physical_id}"
        )
        return _physical(template, new, ctx.clients.region)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the template with all its versions."""
        try:
            with convert_errors(f"deleting launch template {physical_id}"):
                ctx.clients.client("ec2").delete_launch_template(LaunchTemplateId=physical_id)
        except CloudGpuError as err:
            if not is_gone(err):
                raise


def _version_token(token: str, inputs: Properties) -> str:
    """Return a token that depends on the version's content. AWS rejects a token that is reused for other content."""
    content = json.dumps([token, launch_template_data(inputs), _description(inputs)], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:_TOKEN_CHARACTERS]


def _description(inputs: Properties) -> dict[str, str]:
    return {"VersionDescription": inputs["description"]} if inputs.get("description") else {}


def _described(clients: Clients, **by: list[str]) -> dict[str, Any] | None:
    try:
        with convert_errors(f"describing launch template {next(iter(by.values()))[0]}"):
            templates = clients.client("ec2").describe_launch_templates(**by)["LaunchTemplates"]
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    return next(iter(templates), None)


def _physical(template: dict[str, Any], inputs: Properties, region: str) -> ExistingResource:
    template_id = template["LaunchTemplateId"]
    account = template.get("CreatedBy", "").split(":")[4:5]
    outputs = {
        **{key: value for key, value in inputs.items() if key != "tags"},
        "arn": f"arn:aws:ec2:{region}:{''.join(account)}:launch-template/{template_id}",
        "name": template["LaunchTemplateName"],
        "latestVersion": template.get("LatestVersionNumber", 1),
        "defaultVersion": template.get("DefaultVersionNumber", 1),
        **tag_outputs(inputs, tags_to_dict(template.get("Tags"))),
    }
    return ExistingResource(template_id, outputs)
