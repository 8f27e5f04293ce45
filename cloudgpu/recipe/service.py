"""Services: processes that answer on a port of the head, alone (`launch.service`) or beside the ranks."""

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
    """Path that is asked on its port, for instance `/api`; without one, a TCP connection that is accepted is enough."""
    status: Annotated[int, Field(strict=True, ge=100, le=599)] | None = None
    """The status that tells of readiness; any below 400 when left out."""
    within: DurationS = DurationS(180)
    """How long it may take, for instance `2m`."""


class Endpoint(Section):
    """Where a service answers, and what opens it."""

    port: Port
    """TCP port that it listens on at the head's loopback; `{service.port}` and `{service.address}` in its command."""
    ready: Ready = Ready()
    """When it counts as ready."""
    page: str = Field(default="/", pattern=r"^/\S*$")
    """What a browser opens on that port; `{token}` is its token."""
    token: Variable | None = None
    """Variable in which it finds a secret that is made for this run, for instance `JUPYTER_TOKEN`. The secret is
    shown with the address, and is in no log, argument or state."""


class Service(Endpoint):
    """The service that the run consists of, with `with: service`."""

    stays: Literal["expiry", "command"] = "expiry"
    """`expiry`: Ctrl-C asks whether to end it, and what is left goes on until the cluster's expiry or `cancel`;
    `command`: it ends with the `train` that shows it."""


class SideService(Endpoint):
    """A service on the head beside the ranks, TensorBoard for instance; it ends with the run."""

    name: Name
    """What it is called in what is said about it."""
    command: str
    """What it runs, without a shell, filled as `launch.command` is. It sees no GPU."""
