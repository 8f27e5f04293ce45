"""`aws:ec2/launchTemplate:LaunchTemplate`."""

import hashlib
import json
from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import mapped, retag, specification
from cloudgpu.aws.resources.base import HandlerContext, Physical, Properties
from cloudgpu.aws.resources.described import DescribedHandler, all_tags, changed_tags, existing, is_ours, tag_outputs
from cloudgpu.aws.resources.launch_data import DATA, NESTED, launch_template_data
from cloudgpu.aws.session.errors import is_gone, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudGpuError

_TOKEN_CHARACTERS = 64
"""EC2 takes no longer ones."""


class LaunchTemplateHandler(DescribedHandler):
    """Launch template. A change creates a new version; running instances keep theirs."""

    type: ClassVar[str] = "aws:ec2/launchTemplate:LaunchTemplate"
    accepts = frozenset({*DATA, "name", "description", "updateDefaultVersion", "defaultVersion"})
    requires = frozenset({"name"})
    replaced_by = frozenset({"name"})
    nested = NESTED

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Create the template with its first version.

        Raises:
            BadRequestError: A template of this name already exists, or a property is invalid.
        """
        name = inputs["name"]
        request = {
            "ClientToken": ctx.token,
            "LaunchTemplateName": name,
            "LaunchTemplateData": launch_template_data(inputs),
            "TagSpecifications": [specification("launch-template", all_tags(ctx, inputs))],
            **_description(inputs),
        }
        with typed(f"making launch template {name}"):
            made = ctx.clients.client("ec2").create_launch_template(**request)["LaunchTemplate"]
        return _physical(made, inputs, ctx.clients.region)

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Return the template of this name if this call created it."""
        found = _described(ctx.clients, LaunchTemplateNames=[inputs["name"]])
        if not found or not is_ours(ctx, mapped(found.get("Tags"))):
            return None
        return _physical(found, inputs, ctx.clients.region)

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state."""
        found = _described(ctx.clients, LaunchTemplateIds=[physical_id])
        if not found:
            return None
        return _physical(found, {"tags": mapped(found.get("Tags"))}, ctx.clients.region)

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:
        """Add a version where the launch changed, and point the default to it where that was asked for."""
        ec2 = ctx.clients.client("ec2")
        retag(ctx.clients, physical_id, changed_tags(ctx, old), changed_tags(ctx, new))
        default = new.get("defaultVersion")
        with typed(f"changing launch template {physical_id}"):
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
        found = existing(_described(ctx.clients, LaunchTemplateIds=[physical_id]), f"launch template {physical_id}")
        return _physical(found, new, ctx.clients.region)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete it with all its versions."""
        try:
            with typed(f"deleting launch template {physical_id}"):
                ctx.clients.client("ec2").delete_launch_template(LaunchTemplateId=physical_id)
        except CloudGpuError as err:
            if not is_gone(err):
                raise


def _version_token(token: str, inputs: Properties) -> str:
    """Return a token that depends on the content, because AWS rejects a token used for another version."""
    content = json.dumps([token, launch_template_data(inputs), _description(inputs)], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:_TOKEN_CHARACTERS]


def _description(inputs: Properties) -> dict[str, str]:
    return {"VersionDescription": inputs["description"]} if inputs.get("description") else {}


def _described(clients: Clients, **by: list[str]) -> dict[str, Any] | None:
    try:
        with typed(f"looking at launch template {next(iter(by.values()))[0]}"):
            found = clients.client("ec2").describe_launch_templates(**by)["LaunchTemplates"]
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    return next(iter(found), None)


def _physical(found: dict[str, Any], inputs: Properties, region: str) -> Physical:
    template_id = found["LaunchTemplateId"]
    account = found.get("CreatedBy", "").split(":")[4:5]
    outputs = {
        **{key: value for key, value in inputs.items() if key != "tags"},
        "arn": f"arn:aws:ec2:{region}:{''.join(account)}:launch-template/{template_id}",
        "name": found["LaunchTemplateName"],
        "latestVersion": found.get("LatestVersionNumber", 1),
        "defaultVersion": found.get("DefaultVersionNumber", 1),
        **tag_outputs(inputs, mapped(found.get("Tags"))),
    }
    return Physical(template_id, outputs)
