"""Services: processes that listen on a port of the head, alone (`launch.service`) or next to the ranks."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from cloudgpu.recipe.section import Name, Section
from cloudgpu.recipe.units import DurationS

Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
PathOnPort = Annotated[str, StringConstraints(pattern=r"^/[^\s]*$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Ready(Section):
    """When a service counts as ready."""

    http: PathOnPort | None = None
    """HTTP path to request, for example `/api`. Default: the port accepting a TCP connection is enough."""
    status: Annotated[int, Field(strict=True, ge=100, le=599)] | None = None
    """HTTP status that means ready. Default: any below 400."""
    within: DurationS = DurationS(180)
    """Timeout for becoming ready, for example `2m`."""


class Endpoint(Section):
    """Where a service listens, and how to open it."""

    port: Port
    """TCP port on the head's loopback interface; `{service.port}` and `{service.address}` in its command."""
    ready: Ready = Ready()
    """When the service counts as ready."""
    page: str = Field(default="/", pattern=r"^/\S*$")
    """Page to open in a browser; `{token}` is the service's token."""
    token: Variable | None = None
    """Environment variable that receives a secret generated for this run, for example `JUPYTER_TOKEN`. The secret is
    shown with the address and never written to logs, arguments or state."""


class Service(Endpoint):
    """The service that the run consists of; requires `with: service`."""

    stays: Literal["expiry", "command"] = "expiry"
    """`expiry`: Ctrl-C asks whether to stop the service; otherwise it runs until the cluster expires or `cancel`.
    `command`: it stops when the `train` command that shows it ends."""


class SideService(Endpoint):
    """A service on the head next to the ranks, for example TensorBoard; it stops when the run ends."""

    name: Name
    """Name of the service in messages."""
    command: str
    """Command of the service, run without a shell, with the placeholders of `launch.command`. It sees no GPU."""
