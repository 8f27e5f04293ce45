"""The SSH key pair of the cloudgpu home directory."""

import base64
import hashlib
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudgpu.errors import StateError
from cloudgpu.ssh.keys import ensure_key, fingerprint, read_public, same_fingerprint


def test_key_is_created_once_private_and_in_openssh_format(tmp_path: Path) -> None:
    path = tmp_path / "ssh" / "id_ed25519"
    made = ensure_key(path)
    assert ensure_key(path) == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.with_name("id_ed25519.pub").read_text() == made.line + "\n"
    assert made.line.startswith("ssh-ed25519 AAAA")
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]
    blob = base64.b64decode(made.line.split()[1])
    assert made.fingerprint == fingerprint(blob)
    assert len(hashlib.sha256(blob).digest()) == 32


def test_concurrent_processes_create_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "ssh" / "id"
    imports = "from pathlib import Path\nfrom cloudgpu.ssh.keys import ensure_key\n"
    code = f"{imports}print(ensure_key(Path({str(path)!r})).line)"
    with ThreadPoolExecutor(6) as pool:
        lines = set(pool.map(lambda _: subprocess.check_output([sys.executable, "-c", code]), range(6)))
    assert len(lines) == 1
    assert len(list(path.parent.iterdir())) == 2


def test_key_created_by_another_process_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "id"
    theirs = ensure_key(path)
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as it was when the other process had not come so far
    assert ensure_key(path) == theirs
    assert path.with_name("id.pub").read_text() == theirs.line + "\n"


@pytest.mark.parametrize("content", [b"", b"rubbish", b"-----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END"])
def test_damaged_key_is_reported_and_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "id"
    path.write_bytes(content)
    with pytest.raises(StateError, match="is not an OpenSSH private key") as caught:
        ensure_key(path)
    assert caught.value.hint
    assert path.read_bytes() == content


def test_inaccessible_key_path_is_a_state_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError):
        ensure_key(tmp_path / "file" / "id")
    with pytest.raises(StateError, match="cannot read"):
        read_public(tmp_path)


def test_fingerprint_comparison_ignores_padding() -> None:
    assert same_fingerprint("SHA256:abc=", "SHA256:abc")
    assert not same_fingerprint("SHA256:abc", "SHA256:abd")
    assert not same_fingerprint("", "SHA256:abd")
