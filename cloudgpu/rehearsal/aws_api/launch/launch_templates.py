"""Launch templates: unlike in moto, a template's own tags do not apply to resources launched from the template."""

import re
from typing import Any, Final

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, paginate_rows, rule

_TEMPLATE = "launch-template"
_TEMPLATES_PER_PAGE = 200
_NAME: Final = re.compile(r"[a-zA-Z0-9().\-/_]{3,128}")
"""Names that EC2 accepts: the shape `LaunchTemplateName` of botocore's service model."""


@rule("CreateLaunchTemplate")
def create(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Create a template as moto does, but check its name and store the tags for launched resources unchanged."""
    if not _NAME.fullmatch(str(call.params.get("LaunchTemplateName"))):
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


@rule("DescribeLaunchTemplates")
def describe(call: ParsedRequest) -> dict[str, Any]:
    """Describe templates with pagination; moto truncates the list at 15 templates and does not return a token."""
    templates = call.backend.describe_launch_templates(
        template_names=call.texts("LaunchTemplateNames"),
        template_ids=call.texts("LaunchTemplateIds"),
        filters=call.filters(),
    )
    rows, token = paginate_rows(list(templates), call.params, limit=_TEMPLATES_PER_PAGE)
    descriptions = [{**_description(call, template), "Tags": template.get_tags()} for template in rows]
    return {"LaunchTemplates": descriptions, "NextToken": token}


@rule("DeleteLaunchTemplate")
def delete(call: ParsedRequest) -> dict[str, Any]:
    """Delete a template and describe it; moto returns only its names."""
    template = call.backend.delete_launch_template(
        call.params.get("LaunchTemplateName"), call.params.get("LaunchTemplateId")
    )
    return {"LaunchTemplate": _description(call, template)}


def _description(call: ParsedRequest, template: Any) -> dict[str, Any]:  # noqa: ANN401 - moto's template
    return {
        "CreateTime": template.create_time,
        "CreatedBy": f"arn:aws:iam::{call.backend.account_id}:root",
        "DefaultVersionNumber": template.default_version_number,
        "LatestVersionNumber": template.latest_version_number,
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
    }
