"""Wait for the host keys of new nodes on their consoles: the time limit, and what the wait is for."""

from collections.abc import Sequence

from cloudgpu.aws.ec2.host_keys import ConsoleOutput
from cloudgpu.aws.ec2.instances import Instance
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError
from cloudgpu.run.progress import Activity, Emit, Note, duration
from cloudgpu.text import command

_WAITING = "waiting for addresses and host keys"
_DELAYED_FACTOR = 3
"""Factor of the time limit where EC2 posts the console output with a delay.

Without the Nitro System, the output appears minutes after a boot, in cases up to 20 minutes after it (canonical,
pycloudlib, pull request 193). Three times the default of `boot_seconds` is half an hour.
"""


class HostKeyWait:
    """The wait for the addresses and host keys of one cluster's nodes."""

    def __init__(self, boot_s: int, clock: Clock, emit: Emit) -> None:
        """Begin the wait. `boot_s` is the time limit in seconds for consoles that are live."""
        self._boot_s, self._clock, self._emit = boot_s, clock, emit
        self._began_s = clock.monotonic()
        self._addressed: set[str] = set()
        self._delayed: dict[str, str] = {}

    def __enter__(self) -> "HostKeyWait":
        return self

    def __exit__(self, *_: object) -> None:
        """Report that the wait is over."""
        self._emit(Activity(_WAITING, finished=True))

    @property
    def limit_s(self) -> int:
        """Time limit in seconds for all nodes together."""
        return self._boot_s * (_DELAYED_FACTOR if self._delayed else 1)

    def saw(self, instance: Instance, console: ConsoleOutput) -> None:
        """Note that an instance has an address, and whether its console is live. Report the first one that is not."""
        self._addressed.add(instance.id)
        if console.live:
            return
        if not self._delayed:
            why = f"EC2 shows the console of {instance.type} only minutes after the boot, because it is no Nitro type"
            self._emit(Note(f"waiting up to {duration(self._boot_s * _DELAYED_FACTOR)} for the host keys: {why}"))
        self._delayed[instance.id] = instance.type

    def report(self, done: int, total: int) -> None:
        """Report how many nodes have an address and a host key."""
        self._emit(Activity(_WAITING, done=done, total=total, unit="nodes", limit_s=self.limit_s))

    def require_time_left(self, cluster: str, instance_ids: Sequence[str], awaited: Sequence[int]) -> None:
        """Check that the time limit has not passed.

        Args:
            cluster: Name of the cluster, for the hint.
            instance_ids: The instances of the cluster in node order.
            awaited: Indices of the nodes without an address or a host key.
        """
        if self._clock.monotonic() - self._began_s <= self.limit_s:
            return
        ids = [instance_ids[index] for index in awaited]
        keyless = [instance_id for instance_id in ids if instance_id in self._addressed]
        lacks = {
            "no address": [instance_id for instance_id in ids if instance_id not in self._addressed],
            "no host key on the console": keyless,
        }
        parts = [f"{what}: {', '.join(found)}" for what, found in lacks.items() if found]
        late = sorted({self._delayed[instance_id] for instance_id in keyless if instance_id in self._delayed})
        why = f" (EC2 shows the console of {', '.join(late)} with a delay: raise boot_seconds)" if late else ""
        err = CloudError(
            f"after {duration(self.limit_s)}, {'; '.join(parts)}{why}", hint=command("cloudgpu", "down", cluster)
        )
        err.nodes = tuple(awaited)
        raise err
