"""`hosts prepare`: find missing software on hosts, and show or run the commands that install it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudgpu.backends.hosts.backend import HostsBackend
from cloudgpu.backends.hosts.scan import HostScan, scan
from cloudgpu.catalog import Catalog
from cloudgpu.errors import RemoteCommandError, UsageError
from cloudgpu.hosts.host import OwnHost
from cloudgpu.run.progress import Emit, Note
from cloudgpu.ssh.command import Raw, RemoteCommand
from cloudgpu.ssh.fanout import all_or_raise, run_on_all

_INSTALL_S = 1800.0
_COMMANDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "python3-venv": {
        "apt-get": ("apt-get update", "apt-get install -y python3-venv"),
        "dnf": ("dnf install -y python3",),
        "yum": ("yum install -y python3",),
        "zypper": ("zypper --non-interactive install python3-venv",),
    },
    "docker": {
        "apt-get": ("apt-get update", "apt-get install -y docker.io"),
        "dnf": ("dnf install -y docker", "systemctl enable --now docker"),
        "yum": ("yum install -y docker", "systemctl enable --now docker"),
        "zypper": ("zypper --non-interactive install docker", "systemctl enable --now docker"),
    },
    # NVIDIA's repository must already be set up: adding package sources to a host is the owner's decision.
    "container-toolkit": {
        tool: (
            f"{tool} install -y nvidia-container-toolkit",
            "nvidia-ctk runtime configure --runtime=docker",
            "systemctl restart docker",
        )
        for tool in ("apt-get", "dnf", "yum")
    },
}
COMPONENTS = tuple(_COMMANDS)


@dataclass(frozen=True)
class InstallStep:
    """Commands that would run on a host to install one component."""

    host: OwnHost
    what: str
    commands: tuple[str, ...]


def find_missing_components(
    backend: HostsBackend, hosts: Sequence[OwnHost], catalog: Catalog
) -> list[tuple[HostScan, tuple[str, ...]]]:
    """Scan the hosts, and return for each host the missing components that `hosts prepare` can install."""
    return [(scanned, _missing_components(scanned)) for scanned in scan(backend, hosts, catalog, None)]


def plan_install_steps(
    found: Sequence[tuple[HostScan, tuple[str, ...]]], requested: Sequence[str]
) -> list[InstallStep]:
    """Return the commands that install the requested components on the hosts that lack them."""
    for what in requested:
        if what not in _COMMANDS:
            supported = ", ".join(COMPONENTS)
            raise UsageError(f"`hosts prepare` cannot install {what}", hint=f"choose from: {supported}")
    planned = []
    for scanned, missing in found if requested else ():
        if scanned.problem:
            raise RemoteCommandError(f"{scanned.host.name}: {scanned.problem}", hint=scanned.hint)
        planned += [_step(scanned, what) for what in dict.fromkeys(requested) if what in missing]
    return planned


def run_install_steps(backend: HostsBackend, planned: Sequence[InstallStep], emit: Emit) -> None:
    """Run the commands, in parallel across hosts and in order on each host."""
    by_host: dict[str, list[str]] = {}
    for step in planned:
        by_host.setdefault(step.host.name, []).extend(step.commands)
    hosts = list({step.host.name: step.host for step in planned}.values())

    def install(host: Any) -> None:  # noqa: ANN401 - a connection
        for command in by_host[host.node.zone]:
            emit(Note(f"{host.node.zone}: {command}"))
            host.run(RemoteCommand(Raw(command)), timeout_s=_INSTALL_S)

    with backend.connected(backend.nodes(hosts)) as outcomes:
        all_or_raise(run_on_all(all_or_raise(outcomes).values(), install))


def _missing_components(scanned: HostScan) -> tuple[str, ...]:
    facts = scanned.facts
    if scanned.problem:
        return ()
    checks = {
        "python3-venv": not (facts["venv"] or facts["uv"]),
        "docker": not facts["docker"],
        "container-toolkit": bool(facts["gpus"]) and not facts["container_toolkit"],
    }
    return tuple(what for what, missing in checks.items() if missing)


def _step(scanned: HostScan, what: str) -> InstallStep:
    name, package_manager = scanned.host.name, str(scanned.facts["packages"])
    install_commands = _COMMANDS[what].get(package_manager)
    if install_commands is None:
        message = f"{name} has no supported package manager for {what}"
        raise UsageError(message, hint=f"install {what} on {name} manually")
    if not scanned.facts["root"]:
        message = f"{scanned.host.user} on {name} is not root and cannot use sudo without a password"
        raise RemoteCommandError(message, hint=f"ask the host's administrator to run: {'; '.join(install_commands)}")
    sudo = "" if scanned.host.user == "root" else "sudo -n "
    return InstallStep(
        scanned.host, what, tuple(f"{sudo}env DEBIAN_FRONTEND=noninteractive {line}" for line in install_commands)
    )
