"""The EC2 endpoint: this package's rules take precedence over moto's implementation."""

from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.core.utils import camelcase_to_underscores
from moto.ec2.exceptions import DryRunClientError
from moto.ec2.responses import EC2Response

from cloudgpu.rehearsal.aws_api.ec2 import (  # noqa: F401 - importing a module registers its rules
    baked_images,
    default_members,
    dependencies,
    describe,
    elastic_ips,
    instance_types,
    interface_groups,
    nat_gateways,
    public_images,
    reachability,
    regions,
    routes,
    security_groups,
    spot_prices,
    tagging,
    volumes,
    vpc_endpoints,
)
from cloudgpu.rehearsal.aws_api.ec2.filter_names import reject_unknown_filters
from cloudgpu.rehearsal.aws_api.eventual_consistency import record_new_resources, reject_invisible
from cloudgpu.rehearsal.aws_api.interfaces import World
from cloudgpu.rehearsal.aws_api.launch import (  # noqa: F401 - importing a module registers its rules
    client_tokens,
    fleets,
    launch_templates,
    placement_groups,
    reservations,
    run_instances,
)
from cloudgpu.rehearsal.aws_api.paging import paginate_response
from cloudgpu.rehearsal.aws_api.rules import RULES, AwsError, ParsedRequest
from cloudgpu.rehearsal.state.records import SavedAnswer, records_of

_CHECKS_ITSELF = ("RunInstances",)
"""Actions that handle `DryRun` themselves, after they have validated the parameters."""


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
        public_images.register(backend)
        self._check_before_execution(action, params)
        key = client_tokens.response_key(action, params)
        digest = client_tokens.parameters_digest(params) if key else ""
        saved = client_tokens.find_saved_response(records_of(backend), key, digest) if key else None
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
            client_tokens.save_response(records_of(backend), key, answer)
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
