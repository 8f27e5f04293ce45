"""A certificate beside the key: it is used if the server accepts it, and otherwise the key alone, as OpenSSH does."""

import subprocess
from pathlib import Path

import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.ssh.connection import connect
from cloudgpu.ssh.handshake import AuthRefusedError
from cloudgpu.ssh.keys import ensure_key
from tests.system.ssh.conftest import Sshd, serve

VALID = ("-V", "always:forever")
BAD = {
    "expired": (("-V", "20200101:20200102", "-n", "{user}"), "expired at 2020-01-0"),
    "future": (("-V", "20900101:20910101", "-n", "{user}"), "is not valid before 2090-01-0"),
    "principal": ((*VALID, "-n", "deploy,build"), "is only for deploy, build"),
    "host": (("-h", *VALID, "-n", "{user}"), "is not an OpenSSH certificate for this key"),
    "other-key": ((*VALID, "-n", "{user}"), "is not an OpenSSH certificate for this key"),
    "damaged": ((*VALID, "-n", "{user}"), "is not an OpenSSH certificate for this key"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Sshd:
    """A server that accepts an authority's certificates and the key of `Sshd.key`."""
    folder = tmp_path_factory.mktemp("certified")
    ensure_key(folder / "authority")
    server = serve(folder / "sshd", extra=f"TrustedUserCAKeys {folder / 'authority.pub'}")
    yield server
    server.kill()


def certified(server: Sshd, key: Path, kind: str, options: tuple[str, ...]) -> Path:
    """Put a certificate beside a key."""
    user = server.node().user
    signed = key
    if kind == "other-key":
        signed = key.with_name("other")
        ensure_key(signed)
    words = [word.format(user=user) for word in options]
    authority = server.folder.parent / "authority"
    argv = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", *words, f"{signed}.pub"]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    certificate = key.with_name(f"{key.name}-cert.pub")
    if signed != key:
        signed.with_name("other-cert.pub").rename(certificate)
    if kind == "damaged":
        certificate.write_text(certificate.read_text()[:300])
    return certificate


def test_valid_certificate_logs_in_with_a_key_that_is_not_authorized(served: Sshd, tmp_path: Path) -> None:
    key = tmp_path / "id"
    ensure_key(key)
    certified(served, key, "valid", (*VALID, "-n", "{user}"))
    connect(served.node(), key, clock=SystemClock()).close()


@pytest.mark.parametrize(("kind", "options", "problem"), [(kind, *case) for kind, case in BAD.items()], ids=BAD)
def test_unusable_certificate_falls_back_to_the_key_and_is_named_if_both_are_refused(
    served: Sshd, tmp_path: Path, kind: str, options: tuple[str, ...], problem: str
) -> None:
    authorized = tmp_path / "authorized"
    authorized.write_bytes(served.key.read_bytes())
    authorized.chmod(0o600)
    authorized.with_name("authorized.pub").write_bytes(served.key.with_name(f"{served.key.name}.pub").read_bytes())
    certified(served, authorized, kind, options)
    connect(served.node(), authorized, clock=SystemClock()).close()
    stranger = tmp_path / "stranger"
    ensure_key(stranger)
    certificate = certified(served, stranger, kind, options)
    with pytest.raises(AuthRefusedError) as caught:
        connect(served.node(), stranger, clock=SystemClock())
    assert f"refused the key {stranger}, and its certificate {certificate}, which {problem}" in caught.value.message
    assert f"ssh-keygen -L -f {certificate}" in caught.value.hint
