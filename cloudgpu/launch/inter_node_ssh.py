"""SSH between the nodes of a run: files for an SSH client that logs in with the run's own key.

`run/inter_node_ssh.py` creates the key and the known_hosts file at the paths to which these files refer. See
`docs/decisions/0015-ssh-key-of-a-run.md`.
"""

import shlex
from ipaddress import IPv4Address, IPv4Network, ip_address

from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.ranks import HOSTFILE, NodeFile
from cloudgpu.text import openssh_path

PRIVATE_KEY = "ssh/id_ed25519"
"""Path of the run's private key below the run's directory on the head node."""
KNOWN_HOSTS = "ssh/known_hosts"
SSH_CONFIG = "ssh/config"
SSH_SHIM = "ssh/bin/ssh"
_WIDEST_PREFIX = 24


def is_single_machine(inventory: Inventory) -> bool:
    """Return True if all nodes are on this machine, each with its own loopback address.

    Open MPI treats such nodes as one host.
    """
    return all(node.private_address.startswith("127.") for node in inventory.nodes)


def ssh_config(inventory: Inventory, directory: str) -> NodeFile:
    """Return the configuration of an SSH client that reaches only the nodes of this run."""
    return NodeFile(SSH_CONFIG, "\n".join([*(_host(node) for node in inventory.nodes), _every(directory)]))


def _host(node: Node) -> str:
    return (
        f"Host {node.private_address}\n  Port {node.port}\n  User {node.user}\n  HostKeyAlias {host_key_alias(node)}\n"
    )


def _every(directory: str) -> str:
    lines = (
        f"IdentityFile {openssh_path(f'{directory}/{PRIVATE_KEY}')}",
        f"UserKnownHostsFile {openssh_path(f'{directory}/{KNOWN_HOSTS}')}",
        "GlobalKnownHostsFile /dev/null",
        "StrictHostKeyChecking yes",
        "IdentitiesOnly yes",
        "IdentityAgent none",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "BatchMode yes",
        "ConnectTimeout 20",
        "ServerAliveInterval 15",
        "LogLevel ERROR",
    )
    return "Host *\n" + "".join(f"  {line}\n" for line in lines)


def host_key_alias(node: Node) -> str:
    """Return a node's name in known_hosts. Addresses are not used because other clusters may reuse them."""
    return f"node-{node.index}"


def ssh_shim(directory: str) -> NodeFile:
    """Return an `ssh` wrapper for programs that start `ssh` by name. The wrapper runs the system's `ssh`."""
    config = shlex.quote(f"{directory}/{SSH_CONFIG}")
    return NodeFile(SSH_SHIM, f'#!/bin/sh\nexec "$(command -p -v ssh)" -F {config} "$@"\n', 0o700)


def hostfile(slots: dict[str, int]) -> NodeFile:
    """Return the hostfile, which lists every node's address and slots, for Open MPI, DeepSpeed and Horovod."""
    return NodeFile(HOSTFILE, "".join(f"{address} slots={count}\n" for address, count in slots.items()))


def subnet(inventory: Inventory) -> str:
    """Return the smallest network, at least a /24, that contains all private addresses; empty if any is not IPv4."""
    addresses = []
    for node in inventory.nodes:
        try:
            address = ip_address(node.private_address)
        except ValueError:
            return ""
        if not isinstance(address, IPv4Address):
            return ""
        addresses.append(address)
    network = IPv4Network((int(addresses[0]), _WIDEST_PREFIX), strict=False)
    while not all(address in network for address in addresses):
        network = network.supernet()
    return str(network)
