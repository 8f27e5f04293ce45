"""Find the operation in botocore's service models that a request calls."""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel

from cloudgpu.rehearsal.server.http_message import HttpRequest

_MODEL_NAMES: Final = {
    "elasticfilesystem": "efs",
    "servicequotas": "service-quotas",
    "tagging": "resourcegroupstaggingapi",
}
"""Service name in request signatures -> name of the service model, where they differ."""


@dataclass(frozen=True)
class _Route:
    """The HTTP form of an operation in a REST service."""

    method: str
    path: re.Pattern[str]
    query: Mapping[str, str]
    required: tuple[tuple[str, str], ...]
    """Location (`querystring` or `header`) and lower-case name of the members that every request contains."""
    operation: OperationModel

    def matches(self, request: HttpRequest, query: Mapping[str, str]) -> bool:
        if request.method != self.method or not self.path.fullmatch(request.raw_path.rstrip("/") or "/"):
            return False
        if any(query.get(name) != value for name, value in self.query.items()):
            return False
        sent = {"querystring": {name.lower() for name in query}, "header": {name.lower() for name in request.headers}}
        return all(name in sent[location] for location, name in self.required)

    @property
    def precision(self) -> tuple[int, bool]:
        return len(self.query) + len(self.required), not self.operation.deprecated


def find_operation(service: str, action: str, request: HttpRequest) -> OperationModel | None:
    """Return the model of the operation that a request calls, or None if no model describes it.

    Args:
        service: Service name in the request's signature.
        action: Name of the action in the request, for services that name it.
        request: The request, whose method, path, query and headers identify the operation of a REST service.
    """
    model = _service_model(_MODEL_NAMES.get(service, service))
    if model is None:
        return None
    if not model.protocol.startswith("rest-"):
        return model.operation_model(action) if action in model.operation_names else None
    query = dict(parse_qsl(request.raw_query, keep_blank_values=True))
    found = [route for route in _routes(model.service_name) if route.matches(request, query)]
    return max(found, key=lambda route: route.precision).operation if found else None


@functools.cache
def _service_model(name: str) -> ServiceModel | None:
    loader = Loader()
    if name not in loader.list_available_services("service-2"):
        return None
    return ServiceModel(loader.load_service_model(name, "service-2"), name)


@functools.cache
def _routes(service: str) -> tuple[_Route, ...]:
    model = _service_model(service)
    return tuple(_route(model.operation_model(name)) for name in model.operation_names) if model else ()


def _route(operation: OperationModel) -> _Route:
    path, _, query = operation.http["requestUri"].partition("?")
    parts = [_path_part(part) for part in re.split(r"(\{[^}]+\})", path.rstrip("/") or "/")]
    literals = dict(parse_qsl(query, keep_blank_values=True))
    return _Route(
        operation.http["method"],
        re.compile("".join(parts)),
        literals,
        tuple(_required(operation.input_shape)),
        operation,
    )


def _path_part(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    return ".+" if part.endswith("+}") else "[^/]+"


def _required(shape: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - botocore's shape, or None
    for name in shape.required_members if shape is not None else ():
        member = shape.members[name]
        if member.serialization.get("location") in ("querystring", "header"):
            yield member.serialization["location"], str(member.serialization.get("name", name)).lower()
