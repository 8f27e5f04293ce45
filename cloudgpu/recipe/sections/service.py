"""Services: processes that listen on a port on the head node, alone (`launch.service`) or alongside the ranks."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from cloudgpu.recipe.sections.section import Name, Section
from cloudgpu.recipe.units import DurationS

Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
PathOnPort = Annotated[str, StringConstraints(pattern=r"^/[^\s]*$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Ready(Section):
    """The readiness check of a service."""

    http: PathOnPort | None = None
    """HTTP path to request, for example `/api`. Default: a TCP connection to the port is enough."""
    status: Annotated[int, Field(strict=True, ge=100, le=599)] | None = None
    """HTTP status that indicates that the service is ready. Default: any status below 400."""
    within: DurationS = DurationS(180)
    """Time limit for the service to become ready, for example `2m`."""


class Endpoint(Section):
    """The port, readiness check and page of a service."""

    port: Port
    """TCP port on the head node's loopback interface. The command can use the port as `{service.port}` and the address
    as `{service.address}`."""
    ready: Ready = Ready()
    """Readiness check of the service."""
    page: str = Field(default="/", pattern=r"^/\S*$")
    """Path of the page to open in a browser; `{token}` is replaced by the service's token."""
    token: Variable | None = None
    """Environment variable that receives a secret generated for this run, for example `JUPYTER_TOKEN`. The secret is
    shown together with the address and is never written to logs, arguments or state."""


class Service(Endpoint):
    """The main service of a run with `with: service`."""

    stays: Literal["expiry", "command"] = "expiry"
    """Lifetime of the service. With `expiry`, the service runs until the cluster expires or `cancel` stops it; Ctrl-C
    asks whether to stop it. With `command`, the service stops when the `train` command exits."""


class SideService(Endpoint):
    """A service on the head node next to the ranks, for example TensorBoard. It stops when the run finishes."""

    name: Name
    """Name of the service in messages."""
    command: str
    """Command of the service, run without a shell, with the placeholders of `launch.command`. GPUs are
    hidden from the service."""
