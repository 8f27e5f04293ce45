"""Wait for the SSH server of a node that may still be booting."""

from collections.abc import Callable
from pathlib import Path

from cloudgpu.clock import Clock
from cloudgpu.errors import ConnectError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.base import CONNECT_S
from cloudgpu.ssh.connection import SshHost, connect
from cloudgpu.ssh.handshake import AuthRefusedError
from cloudgpu.ssh.tcp_connector import TcpConnector

_BOOT_PAUSE_S = (0.5, 1.0, 2.0, 4.0, 5.0)
_LOGIN_GRACE_S = 60.0

FailureCheck = Callable[[Node, ConnectError], None]
"""Called after each failed attempt to connect to a node; may raise an error if further attempts would not help."""


def retry_always(_node: Node, _failure: ConnectError) -> None:
    """Allow another attempt."""


def wait_for_ssh(
    node: Node,
    key: Path,
    *,
    clock: Clock,
    deadline_s: float,
    via: TcpConnector | None = None,
    hopeless: Callable[[], bool] = lambda: False,
    check: FailureCheck = retry_always,
) -> SshHost:
    """Connect to a node that may still be booting; retry with pauses for at most `deadline_s` seconds.

    A rejected login is retried for one minute only, because a socket-activated sshd may respond before cloud-init has
    created the user and installed the key. On a node that has finished its first boot, a rejected login is not retried.
    Once `hopeless` returns True, no failure is retried. `check` is called before each retry.
    """
    grace_s = 0.0 if node.booted else _LOGIN_GRACE_S
    end = clock.monotonic() + deadline_s
    login_end = None
    attempt = 0
    while True:
        now = clock.monotonic()
        try:
            return connect(node, key, clock=clock, timeout_s=max(1.0, min(CONNECT_S, end - now)), via=via)
        except AuthRefusedError as err:
            login_end = login_end or clock.monotonic() + grace_s
            if not err.retryable or hopeless() or clock.monotonic() >= min(end, login_end):
                raise
        except ConnectError as err:
            if not err.retryable or hopeless() or clock.monotonic() >= end:
                raise
            check(node, err)
        clock.sleep(_BOOT_PAUSE_S[min(attempt, len(_BOOT_PAUSE_S) - 1)])
        attempt += 1
