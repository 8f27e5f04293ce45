"""Launch templates: moto mixes a template's own tags into the tags of launched resources."""

from typing import Any

from cloudgpu.rehearsal.aws_api.rules import ParsedRequest, rule

_OWN = "launch-template"


@rule("CreateLaunchTemplate")
def create(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's answer
    """Create a template as moto does, but store its data unchanged."""
    given = [dict(row) for row in (call.params.get("LaunchTemplateData") or {}).get("TagSpecifications") or []]
    answer = call.proceed()
    template = call.backend.get_launch_template_by_name(str(call.params.get("LaunchTemplateName")))
    template.versions[0].data["TagSpecifications"] = [row for row in given if row.get("ResourceType") != _OWN]
    return answer
