"""The services of a recipe in a plan."""

from collections.abc import Iterator

from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.service import Endpoint, Service
from cloudgpu.recipe.service_rules import endpoints

_STAYS = {"expiry": "it stays when its command is left", "command": "it ends with its command"}


def service_lines(recipe: Recipe) -> Iterator[str]:
    """Yield one line per service: its address, readiness check and lifetime."""
    for _, name, endpoint in endpoints(recipe):
        if isinstance(endpoint, Service):
            yield f"serves port {endpoint.port} of the head, {_ready(endpoint)}; {_STAYS[endpoint.stays]}"
        else:
            yield f"{name} beside the ranks: port {endpoint.port} of the head, {_ready(endpoint)}"


def _ready(endpoint: Endpoint) -> str:
    ready = endpoint.ready
    if ready.http is None:
        return f"ready when it accepts connections, within {ready.within}"
    with_status = f" with {ready.status}" if ready.status else ""
    return f"ready when GET {ready.http} is answered{with_status}, within {ready.within}"
