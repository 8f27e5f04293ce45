"""`hosts scan`, `hosts check` and `hosts prepare`: compare hosts with the inventory, and install what they lack."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cloudgpu.backends.hosts.backend import HostsBackend, duplicate_machines
from cloudgpu.backends.hosts.nodes import HostFacts, LeasesResponse
from cloudgpu.catalog import Catalog
from cloudgpu.catalog.gpu_spec import spec_name
from cloudgpu.decoding import MALFORMED, describe_error
from cloudgpu.errors import CloudGpuError, RemoteCommandError, UsageError
from cloudgpu.hosts.host import Jump, OwnHost
from cloudgpu.launch.inventory import Node
from cloudgpu.run.agent import AgentReplyError, ask_once, count_field
from cloudgpu.run.progress import Emit, Note
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import Raw, RemoteCommand
from cloudgpu.ssh.connection import ShownKey
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.text import plural

Trust = Callable[[OwnHost, ShownKey], bool]
"""Function that asks the user whether a key really belongs to the host."""
_MIB_A_GIB = 1024
_SLACK_GIB = 1.5
"""Tolerance in GiB when matching memory sizes, because drivers reserve part of a GPU's memory."""
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
class HostScan:
    """The result of scanning one host.

    Attributes:
        problem: Reason why the scan failed; empty if it succeeded.
        pinned: Fingerprint of the host key, if the user confirmed the key during this scan; otherwise empty.
        facts: The agent's description of the host; empty if the scan failed.
        differs: Differences between the host and the inventory, one line each.
    """

    host: OwnHost
    problem: str = ""
    hint: str = ""
    pinned: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    differs: tuple[str, ...] = ()

    @property
    def found(self) -> dict[str, Any]:
        """Inventory fields that the scan determined."""
        key = {"host_key": self.pinned} if self.pinned else {}
        return key | {name: value for name, value in self.facts.get("fields", {}).items() if value}

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        facts = {name: value for name, value in self.facts.items() if name not in ("fields", "system")}
        return {
            "name": self.host.name,
            "address": self.host.address,
            "reachable": not self.problem,
            "problem": self.problem,
            "pinned": self.pinned,
            "found": self.found,
            "differs": list(self.differs),
            "facts": facts,
        }


def scan(backend: HostsBackend, hosts: Sequence[OwnHost], catalog: Catalog, trust: Trust | None) -> list[HostScan]:
    """Scan hosts in parallel, after the user has confirmed each unknown host key.

    The scan of a host fails if its key is unknown and `trust` is None, or if the user does not confirm the key.
    """
    nodes: list[Node] = []
    pinned: dict[str, str] = {}
    failures: dict[str, HostScan] = {}
    confirmed_bastions: dict[str, str] = {}
    for host, known in zip(hosts, backend.nodes(hosts), strict=True):
        # A key that was just confirmed is also valid when its host is the jump host of another host.
        bastion_key = confirmed_bastions.get(known.bastion)
        node = replace(known, bastion_keys=(bastion_key,)) if bastion_key and not known.bastion_keys else known
        if node.host_keys or trust is None:
            nodes.append(node)
            continue
        try:
            key = backend.shown_key(node)
        except CloudGpuError as err:
            failures[host.name] = HostScan(host, err.message, err.hint)
            continue
        if trust(host, key):
            pinned[host.name] = key.fingerprint
            confirmed_bastions[Jump(host.user, host.address, host.port).spelled] = key.fingerprint
            nodes.append(replace(node, host_keys=(key.fingerprint,)))
        else:
            failures[host.name] = HostScan(host, f"its host key {key.fingerprint} was not confirmed")
    responses = _described(backend, nodes)
    scanned = [failures.get(host.name) or _scanned(host, responses[host.name], pinned, catalog) for host in hosts]
    same = duplicate_machines(responses)
    return [
        replace(found, differs=(*found.differs, f"it is the same machine as {same[found.host.name]}"))
        if found.host.name in same
        else found
        for found in scanned
    ]


def _described(backend: HostsBackend, nodes: Sequence[Node]) -> dict[str, Mapping[str, Any] | CloudGpuError]:
    def ask(host: Host) -> dict[str, Any]:
        leases = ask_once(host, "lease", {"action": "show"}, LeasesResponse)
        return {
            **ask_once(host, "describe", {}, HostFacts),
            "leases": leases["leases"],
            "processes": leases["processes"],
            "system": leases.get("system", ""),
        }

    responses = backend.query_nodes(nodes, ask)
    return {node.zone: responses[node.index] for node in nodes}


def _scanned(
    host: OwnHost, response: Mapping[str, Any] | CloudGpuError, pinned: Mapping[str, str], catalog: Catalog
) -> HostScan:
    key = pinned.get(host.name, "")
    if isinstance(response, CloudGpuError):
        return HostScan(host, response.message, response.hint, key)
    try:
        fields = inventory_fields(host, response, catalog)
        differs = tuple(_differences(host, response, catalog))
    except AgentReplyError as err:
        return HostScan(host, err.message, err.hint, key)
    except MALFORMED as err:
        return HostScan(
            host,
            f"its agent sent a malformed response: {describe_error(err)}",
            "check that python3 on the host is version 3.8 or newer",
            key,
        )
    return HostScan(host, pinned=key, facts={**response, "fields": fields}, differs=differs)


def inventory_fields(host: OwnHost, facts: Mapping[str, Any], catalog: Catalog) -> dict[str, Any]:
    """Return the inventory fields that can be derived from a host's description."""
    shown = facts["gpus"]
    addresses = [address["address"] for address in facts["addresses"]]
    inner = addresses[0] if len(addresses) == 1 and addresses[0] != host.address else ""
    return {
        "gpus": format_gpu_spec(shown, catalog),
        "driver": str(shown[0]["driver"]) if shown else "",
        "cores": count_field(facts, "cpus"),
        "memory": f"{max(1, count_field(facts, 'memory_mib') // _MIB_A_GIB)}GiB",
        "private_address": inner,
    }


def format_gpu_spec(gpus: Sequence[Mapping[str, Any]], catalog: Catalog) -> str:
    """Return a GPU spec such as `V100-16GB:8`; empty if the GPUs are mixed or not in the catalog."""
    if len({str(gpu["name"]) for gpu in gpus}) != 1:
        return ""
    words = str(gpus[0]["name"]).replace("-", " ").split()
    known = [name for name in catalog.gpus if spec_name(name).replace("-", " ").split()[0] in words]
    gib = count_field(gpus[0], "memory_mib") / _MIB_A_GIB
    for name in sorted(known, key=len, reverse=True):
        sizes = [memory for memory in catalog.gpus[name].memories if abs(float(memory.gib) - gib) <= _SLACK_GIB]
        if sizes:
            several = len(catalog.gpus[name].memories) > 1
            return f"{spec_name(name)}{f'-{sizes[0].sold_as_gb}GB' if several else ''}:{len(gpus)}"
    return ""


def _differences(host: OwnHost, facts: Mapping[str, Any], catalog: Catalog) -> list[str]:
    shown, lines = facts["gpus"], []
    if not shown:
        lines.append(f"no GPU: {facts['gpu_error'] or 'nvidia-smi is missing'}")
    elif host.gpus and len(shown) != host.gpus:
        lines.append(f"it has {plural(len(shown), 'GPU')}, but the inventory lists {host.gpus}")
    gpu_spec = format_gpu_spec(shown, catalog)
    model = gpu_spec.partition(":")[0]
    if gpu_spec and host.gpu and not f"{model}-".startswith(f"{spec_name(host.gpu)}-"):
        lines.append(f"its GPUs are {model}, but the inventory lists {spec_name(host.gpu)}")
    if (facts.get("cuda") or {}).get("state") == "failed":
        lines.append(str(facts["cuda"].get("reason", "")))
    driver = str(shown[0]["driver"]) if shown else ""
    if host.driver and driver and driver != host.driver:
        lines.append(f"its driver is {driver}, but the inventory lists {host.driver}")
    return lines


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
