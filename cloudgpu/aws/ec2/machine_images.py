"""Look up machine images by their SSM parameters."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from cloudgpu.aws.session.errors import convert_response_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import AuthError, CloudGpuError

_AT_ONCE = 8


def resolve_image_ids(
    clients_for: Callable[[str], Clients], parameters: Sequence[tuple[str, str]]
) -> Mapping[tuple[str, str], str]:
    """Return the image ID for each (parameter, region), omitting parameters that are missing or unreadable.

    Raises:
        CloudError: A request failed or AWS is unreachable in one of the regions.
    """
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        image_ids = list(workers.map(lambda pair: _value(clients_for(pair[1]), pair[0]), parameters))
    return {key: image for key, image in zip(parameters, image_ids, strict=True) if image}


def _value(clients: Clients, parameter: str) -> str:
    """Return the parameter's value; empty if it is missing or unreadable. The launch then reports the error."""
    try:
        with convert_response_errors(f"reading the parameter {parameter} in {clients.region}"):
            return str(clients.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"])
    except AuthError:
        return ""
    except CloudGpuError as err:
        if is_gone(err):
            return ""
        raise
