"""Look up machine images by their SSM parameters."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from cloudgpu.aws.session.errors import answered, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import AuthError, CloudGpuError

_AT_ONCE = 8


def named(clients_for: Callable[[str], Clients], wanted: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
    """Return the image ID of each (parameter, region), without parameters that are missing or unreadable.

    Raises:
        CloudError: AWS cannot be reached in one of the regions.
    """
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        found = list(workers.map(lambda pair: _value(clients_for(pair[1]), pair[0]), wanted))
    return {key: image for key, image in zip(wanted, found, strict=True) if image}


def _value(clients: Clients, parameter: str) -> str:
    """Empty where the launch itself will have to tell what is wrong."""
    try:
        with answered(f"reading the parameter {parameter} in {clients.region}"):
            return str(clients.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"])
    except AuthError:
        return ""
    except CloudGpuError as err:
        if is_gone(err):
            return ""
        raise
