"""Open an authenticated SSH connection: TCP, key exchange, host key check, login with a private key, in that order."""

import errno
import io
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_identity,
)

from cloudgpu.clock import Clock
from cloudgpu.errors import ConnectError, HostKeyError, SshSetupError
from cloudgpu.files import KEY_BYTES, read_bytes, read_text
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.base import login_command, node_label
from cloudgpu.ssh.keys import same_fingerprint
from cloudgpu.ssh.transport import LOST, Link
from cloudgpu.text import command, printable

_ANOTHER_KEY = "use another private key: set CLOUDGPU_SSH_KEY, or `key` in the inventory for self-managed hosts"
_UNLIMITED = 2**64 - 1
"""`valid_before` of a certificate without an expiry."""
_SHOWN_PRINCIPALS = 5
_KEY_CLASSES: dict[type, Any] = {
    RSAPrivateKey: paramiko.RSAKey,
    Ed25519PrivateKey: paramiko.Ed25519Key,
    EllipticCurvePrivateKey: paramiko.ECDSAKey,
}
Opened: TypeAlias = "socket.socket | paramiko.Channel"
OpenSocket = Callable[[float], Opened]
"""Opens a connected socket, or an object that behaves like one, within a time limit in seconds."""
_LONGEST_REPLY = 200
_LOCAL_ERRORS = frozenset({errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT, errno.EINVAL})
"""A local firewall rejects the connection, or this machine has no addresses of that kind."""
_KEY_TYPES = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


@dataclass(frozen=True)
class LoginKey:
    """A private key, and the certificate `-cert.pub` beside it if there is one.

    Attributes:
        attempts: The key with its certificate and the key alone, in the order in which they are tried. As with OpenSSH,
            a server that rejects the certificate may still accept the key.
        certificate: Path of the certificate, or None.
        problem: Why the certificate cannot be used; empty if nothing is known to be wrong with it.
    """

    attempts: tuple[paramiko.PKey, ...]
    certificate: Path | None = None
    problem: str = ""

    @property
    def refused_text(self) -> str:
        """What to add to `refused the key`."""
        if self.certificate is None:
            return ""
        return f", and its certificate {self.certificate}{f', which {self.problem}' if self.problem else ''}"

    @property
    def renewal_hint(self) -> str:
        """What to do about the certificate; empty if there is none."""
        if self.certificate is None:
            return ""
        look = command("ssh-keygen", "-L", "-f", str(self.certificate))
        return f"renew the certificate (`{look}` shows it), or authorize the key itself; "


def load_login_key(path: Path, user: str, now: datetime) -> LoginKey:
    """Load a key and its certificate for a login as this user."""
    try:
        content = read_bytes(path, KEY_BYTES)
        plain = _private_key(content)
    except OSError as err:
        raise SshSetupError(f"cannot read the SSH key {path}: {err.strerror}", hint=_ANOTHER_KEY) from err
    except (ValueError, TypeError, UnsupportedAlgorithm, paramiko.SSHException) as err:
        message = f"{path} is not an SSH private key, or has a passphrase: {err}"
        raise SshSetupError(message, hint=_ANOTHER_KEY) from err
    certificate = path.with_name(f"{path.name}-cert.pub")
    if not certificate.exists():
        return LoginKey((plain,))
    try:
        text = read_text(certificate, KEY_BYTES)
        found = load_ssh_public_identity(text.strip().encode())
        certified = _private_key(content)
        certified.load_certificate(text)
    except OSError as err:
        return LoginKey((plain,), certificate, f"cannot be read: {err.strerror}")
    except (ValueError, TypeError, UnsupportedAlgorithm, paramiko.SSHException):
        return LoginKey((plain,), certificate, "is not an OpenSSH certificate for this key")
    if not isinstance(found, SSHCertificate) or not _certifies(found, plain):
        return LoginKey((plain,), certificate, "is not an OpenSSH certificate for this key")
    invalid = _time_problem(found, now)
    problem = invalid or _principal_problem(found, user)
    return LoginKey((plain, certified) if invalid else (certified, plain), certificate, problem)


def _private_key(content: bytes) -> paramiko.PKey:
    """Parse a key. Unlike `PKey.from_path`, this does not read further files."""
    try:
        loaded: object = load_ssh_private_key(content, password=None)
    except ValueError:
        loaded = load_pem_private_key(content, password=None)
    key_class = next((known for base, known in _KEY_CLASSES.items() if isinstance(loaded, base)), None)
    if key_class is None:
        message = f"keys of type {type(loaded).__name__} are not supported"
        raise ValueError(message)
    return key_class.from_private_key(io.StringIO(content.decode()))


def _certifies(certificate: SSHCertificate, key: paramiko.PKey) -> bool:
    line = certificate.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return certificate.type is SSHCertificateType.USER and line.split()[1] == key.get_base64()


def _time_problem(certificate: SSHCertificate, now: datetime) -> str:
    at = now.timestamp()
    if at < certificate.valid_after:
        return f"is not valid before {_time(certificate.valid_after)}"
    if certificate.valid_before != _UNLIMITED and at >= certificate.valid_before:
        return f"expired at {_time(certificate.valid_before)}"
    return ""


def _time(epoch_s: int) -> str:
    try:
        return f"{datetime.fromtimestamp(epoch_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return f"second {epoch_s}"


def _principal_problem(certificate: SSHCertificate, user: str) -> str:
    """Return the principals if they do not contain the user. The server may still map them to this user."""
    names = [printable(name.decode("utf-8", "replace")) for name in certificate.valid_principals]
    if not names or user in names:
        return ""
    others = f" and {len(names) - _SHOWN_PRINCIPALS} more" if len(names) > _SHOWN_PRINCIPALS else ""
    return f"is only for {', '.join(names[:_SHOWN_PRINCIPALS])}{others}"


def open_socket(node: Node, timeout_s: float) -> socket.socket:
    """Connect to the node's SSH port."""
    try:
        opened = socket.create_connection((node.address, node.port), timeout_s)
    except OSError as err:
        raise _unreachable(node, err, timeout_s) from err
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def open_link(node: Node, key: Path, *, clock: Clock, timeout_s: float, connect: OpenSocket) -> Link:
    """Open an authenticated connection whose host key is one of the node's pinned keys."""
    if not node.host_keys:
        hint = "run `cloudgpu hosts scan` for a self-managed host; otherwise, delete the cluster and create it again"
        raise HostKeyError(f"{node_label(node)} has no pinned host key", hint=hint)
    deadline = clock.monotonic() + timeout_s
    login_key = load_login_key(Path(key), node.user, clock.now())
    link = _verified_link(node, connect, lambda: max(0.1, deadline - clock.monotonic()))
    try:
        link.auth_timeout = max(0.1, deadline - clock.monotonic())
        further = _log_in(link, node.user, login_key)
    except LOST as err:
        link.hang_up()
        if _is_refusal(err):
            raise _refused(node, key, login_key) from err
        if "timeout" in str(err):
            raise _silent(node, timeout_s) from err
        raise ConnectError(
            f"{node_label(node)} closed the connection during login: {err or 'end of stream'}",
            hint="run `cloudgpu status --refresh`: the node may still be booting, or may be terminating",
        ) from err
    if further or not link.is_authenticated():
        link.hang_up()
        raise AuthRefusedError(
            f"{node_label(node)} accepts the key {key} for user {node.user}, but also requires {', '.join(further)}",
            hint="allow `publickey` alone in `AuthenticationMethods` of the node's sshd_config",
        )
    return link


def _log_in(link: Link, user: str, login_key: LoginKey) -> Sequence[str]:
    """Log in with the key and its certificate, in the order of the attempts. Return the further methods required."""
    refused: Exception | None = None
    for private in login_key.attempts:
        try:
            return list(link.auth_publickey(user, private))
        except LOST as err:
            if refused is None and not _is_refusal(err):
                raise
            refused = refused or err  # the server may also close the connection after several refusals
    assert refused is not None  # noqa: S101 - there is at least one attempt
    raise refused


def _is_refusal(err: BaseException) -> bool:
    """Return True if the server rejected the key. It may also have timed out or closed the connection instead."""
    no_response = any(words in str(err) for words in ("timeout", "transport shut down"))
    return isinstance(err, paramiko.AuthenticationException) and not no_response


def _refused(node: Node, key: Path, login_key: LoginKey) -> "AuthRefusedError":
    hint = (
        "check `user` and `key` in the inventory, and ~/.ssh/authorized_keys on the host"
        if node.own
        else "check the user name, and that the node was created with this key"
    )
    err = AuthRefusedError(
        f"{node_label(node)} refused the key {key}{login_key.refused_text} for user {node.user}",
        hint=login_key.renewal_hint + hint,
    )
    err.retryable = node.index >= 0  # a jump host outside the cluster does not install its keys while the nodes boot
    return err


class AuthRefusedError(ConnectError):
    """The host key matches, but the server rejects the private key or requires more than the key."""


def _verified_link(node: Node, connect: OpenSocket, left_s: Callable[[], float]) -> Link:
    """Try each key type until the server presents a pinned key, because a pin does not contain the key type."""
    tried: list[str] = []
    shown: list[str] = []
    while True:
        link = _exchange(node, connect(left_s()), tried, left_s())
        if link is None:
            raise _wrong_key(node, shown)
        server_key = link.get_remote_server_key()
        if any(same_fingerprint(pin, server_key.fingerprint) for pin in node.host_keys):
            return link
        link.hang_up()
        shown.append(server_key.fingerprint)
        tried.extend(_KEY_TYPES.get(server_key.get_name(), ()) or (server_key.get_name(),))


def exchange_keys(node: Node, opened: Opened, timeout_s: float) -> Link:
    """Run the key exchange and return the connection. The caller must verify the host key."""
    link = _exchange(node, opened, (), timeout_s)
    if link is None:
        message = f"{node_label(node)} closed the connection during the key exchange"
        raise ConnectError(message, hint="run the command again")
    return link


def _exchange(
    node: Node, opened: socket.socket | paramiko.Channel, without_keys: Sequence[str], timeout_s: float
) -> Link | None:
    """Run the key exchange; return None if the server has no key of the remaining types."""
    link = Link(opened, without_keys=without_keys)
    link.banner_timeout = link.handshake_timeout = timeout_s
    try:
        link.start_client(timeout=timeout_s)
        link.get_remote_server_key()  # raises an error if the exchange timed out; start_client does not
    except paramiko.ssh_exception.IncompatiblePeer as err:
        link.hang_up()
        if without_keys:
            return None
        raise ConnectError(
            f"{node_label(node)} and cloudgpu share no SSH algorithm: {err}",
            hint="allow a current key exchange, cipher and host key type in the node's sshd_config",
        ) from err
    except LOST as err:
        unanswered = link.unanswered
        link.hang_up()
        if unanswered:
            raise _silent(node, timeout_s) from err
        if without_keys and not isinstance(err, OSError):
            return None
        reply = printable(str(err))[:_LONGEST_REPLY]
        message = f"{node_label(node)} responds, but not with SSH: {reply or 'it closed the connection'}"
        raise ConnectError(message, hint="try again: the node may still be booting") from err
    return link


def _silent(node: Node, timeout_s: float) -> ConnectError:
    return ConnectError(
        f"{node_label(node)} accepts connections but did not complete the SSH handshake within {timeout_s:.2g} s",
        hint=f"try `{login_command(node)}`, and check the console: the host may be out of memory, or a disk may hang"
        if node.own
        else "try again: the node may still be booting",
    )


def _wrong_key(node: Node, shown: Sequence[str]) -> HostKeyError:
    return HostKeyError(
        f"{node_label(node)} has an unexpected host key: expected {' or '.join(node.host_keys)}, got {shown[0]}",
        expected=node.host_keys,
        got=shown[0],
        hint="check whether another host responds at this address; cloudgpu did not log in to the host. "
        "If the host was rebuilt on purpose, pin its new fingerprint",
    )


def _unreachable(node: Node, err: OSError, timeout_s: float) -> ConnectError:
    who = node_label(node)
    if isinstance(err, ConnectionRefusedError):
        return ConnectError(f"{who} refused the connection", hint="try again: its SSH server may not be running yet")
    if isinstance(err, TimeoutError):
        return ConnectError(
            f"{who} did not respond within {timeout_s:.0f} s",
            hint="check that the host is running, and that no firewall between this machine and the host blocks SSH"
            if node.own
            else "check that the node is running and that its security group allows your address (`--ssh-cidr`)",
        )
    if isinstance(err, socket.gaierror):
        return ConnectError(
            f"{who}: the address does not resolve: {err.strerror}", hint="check the name and your DNS settings"
        )
    if err.errno in _LOCAL_ERRORS:
        return SshSetupError(
            f"this machine cannot open a connection to {who}: {err.strerror}",
            hint="check the firewall and the network interfaces of this machine",
        )
    return ConnectError(
        f"{who} cannot be reached: {err.strerror or err}",
        hint="check your network, and that the node is running: `cloudgpu status --refresh`",
    )
