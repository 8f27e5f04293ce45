"""Simulated commands of a node: their replies, and the server that sends the replies to `standin.py`.

Replies have no side effects: changes to a node are returned as values. The server listens on a socket inside the node
and accepts one request per connection; `standin.py` describes the format of requests and responses.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from cloudgpu.rehearsal.nodes import addresses, gpus, shared_folders
from cloudgpu.rehearsal.nodes.gpus import DRIVER, Archive, is_simulation, package_names
from cloudgpu.rehearsal.nodes.record import Timer
from cloudgpu.rehearsal.nodes.servers import power_commands
from cloudgpu.rehearsal.nodes.values import NodeSpec

_QUESTIONS = frozenset({"is-active", "is-enabled", "is-failed", "status", "show", "list-timers", "is-system-running"})
_ALWAYS_ACTIVE = frozenset({"ssh", "sshd", "cloud-init", "cloud-final", "cloud-config", "multi-user.target"})
_APT = ("E: Failed to fetch http://archive.ubuntu.com/ubuntu/dists/: connection timed out", 100)
_DNF = ("Error: Failed to download metadata for repo 'amazonlinux': Cannot download repomd.xml", 1)
_FETCHERS: Mapping[str, tuple[str, int]] = {
    "apt-get": _APT,
    "apt": _APT,
    "aptitude": _APT,
    "add-apt-repository": _APT,
    "yum": _DNF,
    "dnf": _DNF,
    "snap": ("error: cannot fetch: dial tcp: i/o timeout", 1),
}
_DRIVER = "nvidia-utils-"
"""Name prefix of the packages that contain `nvidia-smi`."""
_NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA"
    " driver is installed and running.\n\n"
)
_FETCHING_WORDS = frozenset({"update", "upgrade", "dist-upgrade", "full-upgrade", "install", "download", "refresh"})
_REQUEST_BYTES = 512 * 1024


@dataclass(frozen=True)
class CommandContext:
    """The node's state as seen by a simulated command. `now` is the node's time, which may be advanced or skewed."""

    spec: NodeSpec
    now: datetime
    timers: tuple[Timer, ...]
    boot_finished: bool
    boot_failed: bool = False
    disks: shared_folders.NodeMounts = shared_folders.NO_MOUNTS
    installed: tuple[str, ...] = ()
    bare: bool = False
    """True if the image lacks the packages that the bootstrap installs."""
    archive: Archive = field(default_factory=Archive)
    driver_loading: bool = False
    """True if the image's driver is not loaded yet."""
    fabric_manager_down: bool = False
    """True if Fabric Manager cannot start."""

    @property
    def has_driver(self) -> bool:
        """True if a driver is installed."""
        return not self.bare or any(name.startswith(_DRIVER) for name in self.installed)

    @property
    def has_fabric_manager(self) -> bool:
        """True if Fabric Manager is installed."""
        in_image = not self.bare or any(name.startswith(gpus.FABRIC_MANAGER) for name in self.installed)
        return self.spec.has_nvswitch and in_image


@dataclass(frozen=True)
class Reply:
    """The output of a simulated command and its changes to the node. `log` is appended to the node's simulation log."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    end: power_commands.Action | None = None
    arm: Timer | None = None
    disarm: str = ""
    run: tuple[str, ...] = field(default=())
    log: str = ""
    wait_for_boot: bool = False
    mounted: shared_folders.Mounted | None = None
    unmounted: shared_folders.Mounted | None = None
    installed: tuple[str, ...] = ()
    """Packages installed by the command."""
    formatted: str = ""
    """Name of the backing directory, if the command formatted a volume."""


def simulate_command(program: str, arguments: Sequence[str], units: Mapping[str, str], scene: CommandContext) -> Reply:
    """Return the reply to one command. `units` maps the names of unit files on the node to their contents."""
    try:
        if program in shared_folders.MOUNT_PROGRAMS:
            return _mounting(program, list(arguments), scene)
        special = _special(program, list(arguments), units, scene)
    except ValueError as err:
        return Reply(stderr=f"{program}: {err}\n", exit_code=1)
    return special or _simulated(program, arguments)


def _special(program: str, arguments: list[str], units: Mapping[str, str], scene: CommandContext) -> Reply | None:
    if program in ("poweroff", "halt", "reboot"):
        return Reply(end="reboot" if program == "reboot" else "off")
    if program in ("init", "telinit"):
        return _run_level(arguments)
    if program in _FETCHERS:
        return _package_tool(program, arguments, scene)
    if program == "nvidia-smi":
        return _nvidia_smi(arguments, scene)
    handler = _HANDLERS.get(program)
    return handler(arguments, units, scene) if handler else None


def _mounting(program: str, arguments: list[str], scene: CommandContext) -> Reply:
    result = shared_folders.simulate_program(program, arguments, scene.disks)
    changes = bool(result.mounted or result.unmounted or result.formatted)
    return Reply(
        stdout=result.stdout,
        stderr=result.stderr,
        exit_code=result.exit_code,
        mounted=result.mounted,
        unmounted=result.unmounted,
        formatted=result.formatted,
        log=" ".join([program, *arguments]) if changes else "",
    )


def _nvidia_smi(arguments: list[str], scene: CommandContext) -> Reply:
    if not scene.has_driver:
        return Reply(stderr="nvidia-smi: command not found (simulated: the image has no driver)\n", exit_code=127)
    if scene.driver_loading:
        return Reply(stdout=_NOT_LOADED, exit_code=9)
    mismatch = scene.archive.mismatch(scene.installed)
    if mismatch:
        return Reply(stdout=mismatch, exit_code=18)
    text, code = gpus.simulate_nvidia_smi(scene.spec, arguments)
    return Reply(stdout=text, exit_code=code)


def _unreachable(program: str) -> Reply:
    """Return the error that a package tool reports on a node without access to the internet."""
    text, code = _FETCHERS[program]
    return Reply(stderr=f"{text} (simulated: no route to the internet)\n", exit_code=code)


def _run_level(arguments: list[str]) -> Reply | None:
    if arguments[:1] == ["0"]:
        return Reply(end="off")
    return Reply(end="reboot") if arguments[:1] == ["6"] else None


def _simulated(program: str, arguments: Sequence[str]) -> Reply:
    shown = " ".join([program, *arguments])
    return Reply(stdout=f"{program}: simulated, nothing was changed\n", log=shown)


def _package_tool(program: str, arguments: list[str], scene: CommandContext) -> Reply | None:
    if program == "apt-get" and "update" in arguments:
        return Reply(stdout=scene.archive.update(reachable=scene.spec.egress))
    if not scene.spec.egress and any(word in _FETCHING_WORDS for word in arguments):
        return _unreachable(program)
    return _install(program, arguments, scene) if "install" in arguments else None


def _install(program: str, arguments: list[str], scene: CommandContext) -> Reply:
    packages = package_names(arguments)
    conflict = scene.archive.conflict(packages)
    if conflict:
        return Reply(stderr=conflict, exit_code=100)
    reply = _simulated(program, arguments)
    return reply if is_simulation(arguments) else replace(reply, installed=packages)


def _apt_cache(arguments: list[str], _: Mapping[str, str], scene: CommandContext) -> Reply | None:
    text = scene.archive.cache(arguments)
    return Reply(stdout=text) if text else None


def _modinfo(arguments: list[str], _: Mapping[str, str], scene: CommandContext) -> Reply | None:
    if "nvidia" not in arguments or scene.has_driver:
        return None
    return Reply(stderr="modinfo: ERROR: Module nvidia not found.\n", exit_code=1)


def _shutdown(arguments: list[str], _: Mapping[str, str], scene: CommandContext) -> Reply:
    request = power_commands.parse_shutdown(arguments, scene.now)
    if request.cancel:
        return Reply(disarm=power_commands.SHUTDOWN_UNIT)
    if request.delay_s <= 0:
        return Reply(end=request.action)
    verb = "reboot" if request.action == "reboot" else "poweroff"
    due = scene.now.timestamp() + request.delay_s
    shown = datetime.fromtimestamp(due, UTC).strftime("%a %Y-%m-%d %H:%M:%S UTC")
    text = f"Shutdown scheduled for {shown}, use 'shutdown -c' to cancel.\n"
    return Reply(stderr=text, arm=Timer(power_commands.SHUTDOWN_UNIT, due, (verb,)))


def _systemd_run(arguments: list[str], _: Mapping[str, str], scene: CommandContext) -> Reply:
    unit = power_commands.parse_systemd_run(arguments, scene.now)
    if unit.due is None:
        end = power_commands.immediate_action(unit.command)
        return Reply(end=end) if end else Reply(stderr=f"Running as unit: {unit.name}.service\n", run=unit.command)
    if any(timer.unit == unit.name for timer in scene.timers):
        text = f"Failed to start transient timer unit: Unit {unit.name}.timer was already loaded.\n"
        return Reply(stderr=text, exit_code=1)
    timer = Timer(unit.name, unit.due.timestamp(), unit.command)
    return Reply(stderr=f"Running timer as unit: {unit.name}.timer\n", arm=timer)


def _systemctl(arguments: list[str], units: Mapping[str, str], scene: CommandContext) -> Reply:
    words = [word for word in arguments if not word.startswith("-")]
    verb, names = (words[0], words[1:]) if words else ("list-units", [])
    end = power_commands.immediate_action(["systemctl", verb])
    if end:
        return Reply(end=end)
    timers = [name for name in names if name.endswith(".timer")]
    if verb in _QUESTIONS:
        return _query(verb, names, scene, quiet=bool({"-q", "--quiet"} & set(arguments)))
    if scene.fabric_manager_down and verb in ("start", "restart") and _names_fabric_manager(names):
        return Reply(stderr=gpus.FABRIC_MANAGER_FAILED, exit_code=1)
    if timers:
        return _timer_command(verb, timers[0], units, scene, now="--now" in arguments)
    return Reply(log=" ".join(["systemctl", *arguments]))


def _timer_command(verb: str, name: str, units: Mapping[str, str], scene: CommandContext, *, now: bool) -> Reply:
    if verb in ("stop", "kill") or (verb == "disable" and now):
        return Reply(disarm=name.removesuffix(".timer"))
    if verb in ("start", "restart") or (verb == "enable" and now):
        return _start_timer(name, units, scene)
    return Reply(log=f"systemctl {verb} {name}")


def _start_timer(name: str, units: Mapping[str, str], scene: CommandContext) -> Reply:
    unit = power_commands.parse_timer_unit(name, units, scene.now)
    if unit is None or unit.due is None:
        return Reply(stderr=f"Failed to start {name}: Unit {name} not found.\n", exit_code=5)
    return Reply(arm=Timer(unit.name, unit.due.timestamp(), unit.command))


def _query(verb: str, names: list[str], scene: CommandContext, *, quiet: bool) -> Reply:
    if verb == "list-timers":
        return Reply(stdout=_timer_table(scene))
    if verb == "is-system-running":
        return Reply(stdout="running\n") if scene.boot_finished else Reply(stdout="starting\n", exit_code=1)
    active = [_is_active(name, scene) for name in names] or [False]
    words = {"is-enabled": ("enabled", "disabled"), "is-failed": ("active", "inactive")}.get(
        verb, ("active", "inactive")
    )
    text = "".join(f"{words[0] if up else words[1]}\n" for up in active)
    code = 0 if all(active) else {"is-enabled": 1, "is-failed": 1}.get(verb, 3)
    return Reply(stdout="" if quiet else text, exit_code=code)


def _is_active(name: str, scene: CommandContext) -> bool:
    if name.endswith(".timer"):
        return any(f"{timer.unit}.timer" == name for timer in scene.timers)
    if _names_fabric_manager([name]):
        return scene.has_fabric_manager and not scene.fabric_manager_down
    return name.removesuffix(".service") in _ALWAYS_ACTIVE


def _names_fabric_manager(arguments: Sequence[str]) -> bool:
    """Return True if one of these arguments is Fabric Manager's unit."""
    return any(name.removesuffix(".service") == gpus.FABRIC_MANAGER for name in arguments)


def _timer_table(scene: CommandContext) -> str:
    rows = []
    for timer in sorted(scene.timers, key=lambda timer: timer.due_epoch_s):
        due = datetime.fromtimestamp(timer.due_epoch_s, UTC)
        rows.append(f"{due:%a %Y-%m-%d %H:%M:%S} UTC  {timer.unit}.timer  {timer.unit}.service")
    return (
        "".join(f"{row}\n" for row in ["NEXT                         UNIT  ACTIVATES", *rows])
        + f"\n{len(rows)} timers listed.\n"
    )


def _cloud_init(arguments: list[str], _: Mapping[str, str], scene: CommandContext) -> Reply | None:
    if arguments[:1] != ["status"]:
        return None
    if {"--wait", "-w"} & set(arguments) and not scene.boot_finished:
        return Reply(wait_for_boot=True)
    if scene.boot_failed:
        return Reply(stdout="status: error\n", exit_code=1)
    return Reply(stdout="status: done\n" if scene.boot_finished else "status: running\n")


def _fi_info(_: list[str], __: Mapping[str, str], scene: CommandContext) -> Reply:
    if not scene.spec.efa_interfaces:
        return Reply(stderr="fi_getinfo: -61 (No data available)\n", exit_code=61)
    domain = "provider: efa\n    fabric: efa (simulated)\n    domain: rdmap{}s0-rdm\n    type: FI_EP_RDM\n"
    return Reply(stdout="".join(domain.format(index) for index in range(scene.spec.efa_interfaces)))


def _ldconfig(arguments: list[str], _: Mapping[str, str], scene: CommandContext) -> Reply | None:
    if "-p" not in arguments or not scene.spec.efa_interfaces:
        return None
    return Reply(stdout="\tlibnccl-net.so (libc6,x86-64) => /opt/amazon/ofi-nccl/lib/libnccl-net.so\n")


def _fabric_manager(_: list[str], __: Mapping[str, str], scene: CommandContext) -> Reply:
    if not scene.has_fabric_manager:
        text = "nv-fabricmanager: command not found (simulated: the image has no Fabric Manager)\n"
        return Reply(stderr=text, exit_code=127)
    return Reply(stdout=f"Fabric Manager version is : {DRIVER}\n")


def _journal(arguments: list[str], _: Mapping[str, str], scene: CommandContext) -> Reply | None:
    if not scene.has_fabric_manager or not _names_fabric_manager(arguments):
        return None
    state = "Failed to start" if scene.fabric_manager_down else "Started"
    return Reply(stdout=f"{state} NVIDIA fabric manager service.\n")


_HANDLERS = {
    "shutdown": _shutdown,
    "systemd-run": _systemd_run,
    "systemctl": _systemctl,
    "cloud-init": _cloud_init,
    "fi_info": _fi_info,
    "ldconfig": _ldconfig,
    "apt-cache": _apt_cache,
    "modinfo": _modinfo,
    "nv-fabricmanager": _fabric_manager,
    "journalctl": _journal,
}
Asked = Callable[[str, Sequence[str], dict[str, str]], Awaitable[Reply]]


class StandInServer:
    """The server that replies to the simulated commands of one node."""

    def __init__(self, asked: Asked, answered: Callable[[Reply], None]) -> None:
        """Create the server without listening.

        Args:
            asked: Function that returns the reply to a command.
            answered: Function that is called after the reply was sent. It may power off the node.
        """
        self._asked = asked
        self._answered = answered
        self._server: asyncio.Server | None = None

    async def listen(self, folder: Path) -> None:
        """Serve on `node.sock` in a directory that is visible in the node."""
        bound = addresses.bind(folder / "node.sock")
        self._server = await asyncio.start_unix_server(self._serve, sock=bound)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An invalid request or a dropped connection must not affect other nodes.
        with contextlib.suppress(OSError, ValueError, IndexError):
            reply = await self._asked(*_parsed(await _read_all(reader)))
            writer.write(_response(reply))
            with contextlib.suppress(OSError):
                await writer.drain()
            self._answered(reply)
        writer.close()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """Read everything up to the end of the stream."""
    text = b""
    while part := await reader.read(_REQUEST_BYTES):
        text += part
        if len(text) > _REQUEST_BYTES:
            raise ValueError
    return text


def _parsed(text: bytes) -> tuple[str, list[str], dict[str, str]]:
    """Split a request into the program, its arguments and the unit files."""
    fields = [field.decode(errors="replace") for field in text.split(b"\0")]
    program, end = fields[0], 2 + int(fields[1])
    arguments, units = fields[2:end], fields[end:]
    return program, arguments, dict(zip(units[::2], units[1::2], strict=True))


def _response(reply: Reply) -> bytes:
    stdout, stderr = reply.stdout.encode(), reply.stderr.encode()
    return f"{reply.exit_code} {len(stdout)} {len(stderr)}\n".encode() + stdout + stderr
