"""Host keys are found in `known_hosts` by the rules of OpenSSH, compared with the real `ssh` and `ssh-keygen -F`."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudgpu.ssh.keys import read_public
from cloudgpu.ssh.known_hosts import authority_note, known_keys
from tests.system.ssh.conftest import Sshd, serve

ACCEPTED = (
    "127.0.0.1 KEY",
    "[127.0.0.1]:PORT KEY",
    "[127.0.0.*]:PORT KEY",
    "[127.0.0.?]:PORT KEY",
    "[127.*]:* KEY a comment",
    "other.example.org,[127.0.0.1]:PORT KEY",
    "* KEY",
    "!10.*,* KEY",
    "  [127.0.0.1]:PORT\tKEY",
    "# a comment\n\n[127.0.0.1]:PORT KEY\r",
    "not a line at all\n[127.0.0.1]:PORT KEY",
    "[127.0.0.1]:PORT OTHER\n[127.0.0.1]:PORT KEY",
    "@unknown * KEY\n[127.0.0.1]:PORT KEY",
    "@revoked * OTHER\n[127.0.0.1]:PORT KEY",
    "@revoked 10.0.0.1 KEY\n[127.0.0.1]:PORT KEY",
    "127.0.0.* KEY",
)
REFUSED = (
    "",
    "#[127.0.0.1]:PORT KEY",
    "[127.0.0.1]:1 KEY",
    "[127.0.0.1]:PORT OTHER",
    "[127.0.0.1]:PORT,!127.* OTHER",
    "![127.0.0.1]:PORT,[127.*]:PORT KEY",
    "!*,[127.0.0.1]:PORT KEY",
    "[127.0.0.[1]]:PORT KEY",
    "@revoked * KEY\n[127.0.0.1]:PORT KEY",
    "@revoked 127.0.0.1 KEY\n127.0.0.1 KEY",
    "[127.0.0.1]:PORT OTHER\n127.0.0.1 KEY",
    "[127.0.0.1]:PORT ssh-rsa KEYBLOB",
    "@cert-authority * KEY",
    "|1|bm90|YSBoYXNo KEY",
    "[127.0.0.1]:PORT",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Sshd]:
    server = serve(tmp_path_factory.mktemp("known") / "sshd")
    yield server
    server.kill()


def key_of(path: Path) -> str:
    return " ".join(read_public(path).line.split()[:2])


def written(server: Sshd, text: str, folder: Path) -> Path:
    key, other = key_of(server.folder / "host_ed25519"), key_of(server.key)
    path = folder / "known_hosts"
    text = text.replace("PORT", str(server.port)).replace("OTHER", other).replace("KEYBLOB", key.split()[1])
    path.write_bytes((text.replace("KEY", key) + "\n").encode())
    return path


def ssh_accepts(server: Sshd, known: Path) -> bool:
    node = server.node()
    options = (f"UserKnownHostsFile={known}", "GlobalKnownHostsFile=/dev/null", "StrictHostKeyChecking=yes",
               "IdentitiesOnly=yes", "IdentityAgent=none")  # fmt: skip
    argv = ["ssh", "-F", "none", "-i", str(server.key), *(part for option in options for part in ("-o", option)),
            "-p", str(node.port), f"{node.user}@{node.address}", "true"]  # fmt: skip
    return subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "accepted"), [*((text, True) for text in ACCEPTED), *((text, False) for text in REFUSED)]
)
def test_host_key_is_accepted_if_openssh_accepts_it(server: Sshd, tmp_path: Path, text: str, accepted: bool) -> None:
    known = written(server, text, tmp_path)
    found = known_keys("127.0.0.1", server.port, [known])
    assert (server.fingerprints[0] in found) == accepted
    assert ssh_accepts(server, known) == accepted


@pytest.mark.parametrize("name", ["127.0.0.1", "[127.0.0.1]:PORT"])
def test_hashed_file_with_several_key_types_is_read(server: Sshd, tmp_path: Path, name: str) -> None:
    """`HashKnownHosts` and `ssh-keygen -H` hash the names."""
    other = tmp_path / "ecdsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(other)], check=True)
    lines = [f"{name} KEY", f"{name} {key_of(other)}"]
    known = written(server, "\n".join(lines), tmp_path)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    assert "127.0.0.1" not in known.read_text()
    found = known_keys("127.0.0.1", server.port, [known])
    assert set(found) == {server.fingerprints[0], read_public(other).fingerprint}
    assert ssh_accepts(server, known)


def test_keys_are_collected_from_all_files_and_an_authority_is_named(server: Sshd, tmp_path: Path) -> None:
    (tmp_path / "global").mkdir()
    own, shared = written(server, "127.0.0.1 OTHER", tmp_path), written(server, "127.* KEY", tmp_path / "global")
    assert known_keys("127.0.0.1", 22, [own, tmp_path / "missing", shared]) == (
        read_public(server.key).fingerprint,
        server.fingerprints[0],
    )
    assert authority_note("127.0.0.1", 22, [own, shared]) == ""
    certified = written(server, "@cert-authority 127.* KEY", tmp_path)
    assert "@cert-authority" in authority_note("127.0.0.1", 2222, [certified])


NAMES = ("a.b", "[a.b]:7", "A.b", "x")
PATTERNS = st.lists(st.text("ab.*?![]:7,A", min_size=1, max_size=8), min_size=1, max_size=3).map(",".join)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(PATTERNS.filter(lambda hosts: hosts[0] not in "#@|"), min_size=1, max_size=6))
def test_random_patterns_match_the_lines_that_ssh_keygen_finds(server: Sshd, tmp_path: Path, lines: list[str]) -> None:
    key = key_of(server.key)
    path = tmp_path / "random"
    path.write_text("".join(f"{hosts} {key}\n" for hosts in lines))
    for name in NAMES:
        done = subprocess.run(["ssh-keygen", "-F", name, "-f", str(path)], capture_output=True, text=True, check=False)
        host, port = ("a.b", 7) if name.startswith("[") else (name, 22)
        alone = tmp_path / "alone"
        found = []
        for number, hosts in enumerate(lines, start=1):
            # A line without a port counts only if no line with the port matches, so look at each line alone.
            alone.write_text(f"{hosts} {key}\n")
            if port == 22 and known_keys(host, port, [alone]):
                found.append(number)
        if port == 22:
            assert found == [int(number) for number in re.findall("found: line ([0-9]+)", done.stdout)], name
        elif "found" in done.stdout:
            assert known_keys(host, port, [path])
