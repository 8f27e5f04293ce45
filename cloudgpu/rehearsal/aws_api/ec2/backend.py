"""The EC2 endpoint: this package's rules, such as those for tags, take precedence over moto's implementation."""

from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.core.utils import camelcase_to_underscores
from moto.ec2.exceptions import DryRunClientError
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX

from cloudgpu.rehearsal.aws_api import prices  # noqa: F401 - importing a module registers its rules
from cloudgpu.rehearsal.aws_api.dispatch import RULES, AwsError, ParsedRequest, rule
from cloudgpu.rehearsal.aws_api.ec2 import (  # noqa: F401 - importing a module registers its rules
    describe,
    elastic_ips,
    images,
    instance_types,
    networks,
    reachability,
    volumes,
)
from cloudgpu.rehearsal.aws_api.ec2.describe import paginate_response, reject_unknown_filters
from cloudgpu.rehearsal.aws_api.eventual_consistency import record_new_resources, reject_invisible
from cloudgpu.rehearsal.aws_api.interfaces import World
from cloudgpu.rehearsal.aws_api.launch import (  # noqa: F401 - importing a module registers its rules
    capacity,
    fleets,
    instances,
    placement_groups,
    request,
)
from cloudgpu.rehearsal.server.http_server import MAX_TAGS
from cloudgpu.rehearsal.state.records import SavedAnswer, records_of

# DescribeTags derives the type of a resource from its ID, and moto's placement groups have none.
EC2_PREFIX_TO_RESOURCE["pg"] = "placement-group"
EC2_RESOURCE_TO_PREFIX["placement-group"] = "pg"
_CHECKS_ITSELF = ("RunInstances",)
"""Actions that handle `DryRun` themselves, after they have validated the parameters."""


@rule("CreateTags")
def create_tags(call: ParsedRequest) -> dict[str, Any]:
    """Set tags on resources of any type; if one of the resources does not exist, the whole call fails."""
    ids = _existing_ids(call)
    tags = {row["Key"]: str(row.get("Value") or "") for row in call.params.get("Tags") or []}
    if any(key.startswith("aws:") for key in tags):
        raise AwsError("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
    for resource_id in ids:
        if len({**call.backend.tags.get(resource_id, {}), **tags}) > MAX_TAGS:
            raise AwsError("TagLimitExceeded", f"{resource_id} would have more than the maximum of {MAX_TAGS} tags.")
    call.backend.create_tags(ids, tags)
    _update_copies(call, ids)
    return {}


@rule("DeleteTags")
def delete_tags(call: ParsedRequest) -> dict[str, Any]:
    """Delete tags; a tag that is specified without a value is deleted regardless of its value."""
    ids = _existing_ids(call)
    call.backend.delete_tags(ids, {row["Key"]: row.get("Value") for row in call.params.get("Tags") or []})
    _update_copies(call, ids)
    return {}


def _existing_ids(call: ParsedRequest) -> list[str]:
    ids = call.texts("Resources")
    if not ids:
        raise AwsError("MissingParameter", "The request must contain the parameter resourceIdSet")
    simulated = {group.id for group in call.records.placement_groups.values()} | call.records.fleets.keys()
    call.backend.do_resources_exist([resource_id for resource_id in ids if resource_id not in simulated])
    return ids


def _update_copies(call: ParsedRequest, ids: list[str]) -> None:
    """Update the copies of the tags that launch templates and placement groups store."""
    for resource_id in ids:
        tags = dict(call.backend.tags.get(resource_id, {}))
        if resource_id in call.backend.launch_templates:
            template = call.backend.launch_templates[resource_id]
            template.tags = template.get_tags()
        for group in call.records.placement_groups.values():
            if group.id == resource_id:
                group.tags = tags


class StrictEc2(EC2Response):
    """A handler for one EC2 request."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def call_action(self) -> tuple[int, dict[str, Any], Any]:
        """Execute the action and return the response, with errors converted to AWS error responses."""
        status = 0
        try:
            status, headers, body = self._execute()
        except ServiceException as err:
            code, headers, body = self.serialized(ActionResult(err))
            status = err.http if isinstance(err, AwsError) else code
        headers, body = self._enrich_response(headers, body)
        return status, headers, body

    def _execute(self) -> tuple[int, dict[str, Any], Any]:
        action = str(self._get_action())
        params = dict(self.params)
        backend = self.ec2_backend
        images.register(backend)
        self._check_before_execution(action, params)
        key = request.response_key(action, params)
        digest = request.parameters_digest(params) if key else ""
        saved = request.find_saved_response(records_of(backend), key, digest) if key else None
        if saved:
            return saved.status, dict(saved.headers), saved.body
        if params.get("DryRun") and action not in _CHECKS_ITSELF:
            raise DryRunClientError
        status, headers, body = self.serialized(
            paginate_response(action, params, self._result(action, params, backend))
        )
        record_new_resources(self._world.behaviour, action, params, body)
        if action in reachability.ACCESS_CHANGING_ACTIONS:
            reachability.send_access(self._world.host, backend, records_of(backend))
        if key:
            raw = body.encode() if isinstance(body, str) else bytes(body)
            answer = SavedAnswer(digest, status, {name: str(value) for name, value in headers.items()}, raw)
            request.save_response(records_of(backend), key, answer)
        return status, headers, body

    def _check_before_execution(self, action: str, params: dict[str, Any]) -> None:
        """Apply throttling, the check of the filters' names and eventual consistency.

        AWS applies them before it validates the other parameters.
        """
        if self._world.behaviour.should_throttle(str(self.region)):
            raise AwsError("RequestLimitExceeded", "Request limit exceeded.", http=503)
        reject_unknown_filters(action, params)
        reject_invisible(self._world.behaviour, params)

    def _result(self, action: str, params: dict[str, Any], backend: Any) -> ActionResult:  # noqa: ANN401
        implementation = RULES.get(action)
        if implementation is None:
            return self._moto(action)
        call = ParsedRequest(
            action=action,
            params=params,
            region=str(self.region),
            backend=backend,
            records=records_of(backend),
            world=self._world,
            proceed=lambda: self._moto(action),
        )
        response = implementation(call)
        return response if isinstance(response, ActionResult) else ActionResult(response)

    def _moto(self, action: str) -> ActionResult:
        """Run moto's implementation."""
        method = getattr(self, camelcase_to_underscores(action), None)
        try:
            result: ActionResult | None = method() if method else None
        except NotImplementedError as err:
            raise AwsError("UnsupportedOperation", f"The rehearsal cloud does not simulate this: {err}") from err
        if result is None:
            raise AwsError("UnsupportedOperation", f"The rehearsal cloud does not simulate {action}.")
        return result
