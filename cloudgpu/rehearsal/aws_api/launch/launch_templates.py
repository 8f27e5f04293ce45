"""Launch templates: unlike in moto, a template's own tags do not apply to resources launched from the template."""

from typing import Any

from cloudgpu.rehearsal.aws_api.rules import ParsedRequest, rule

_TEMPLATE = "launch-template"


@rule("CreateLaunchTemplate")
def create(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Create a template as moto does, but store the request's tags for launched resources unchanged."""
    launch_tags = [dict(row) for row in (call.params.get("LaunchTemplateData") or {}).get("TagSpecifications") or []]
    response = call.proceed()
    template = call.backend.get_launch_template_by_name(str(call.params.get("LaunchTemplateName")))
    template.versions[0].data["TagSpecifications"] = [
        row for row in launch_tags if row.get("ResourceType") != _TEMPLATE
    ]
    return response
