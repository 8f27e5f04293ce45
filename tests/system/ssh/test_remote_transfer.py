"""Transfer directory trees and single files to and from a real OpenSSH server."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.errors import ConnectError, RemoteCommandError, StateError, UsageError
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.connection import SshHost, connect
from cloudgpu.ssh.transfer import send as send_module
from cloudgpu.ssh.transfer.listing import SkippedDownload
from cloudgpu.ssh.transfer.local_tree import files_to_send

Sshd = Any

pytestmark = [pytest.mark.main_path, pytest.mark.system]

STRANGE = ["a b", "new\nline", "quo'te\"$x`y`", os.fsdecode(b"\xff\xfe"), "-rf", "ünï", "sub/x", "sub/deep/y", "~", "*"]


def plant(root: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def snapshot(root: Path) -> dict[str, Any]:
    """Return everything below a directory: content, mode and mtime of files, targets of symlinks."""
    found: dict[str, Any] = {}
    for here, folders, files in os.walk(root):
        for name in [*files, *folders]:
            path = Path(here) / name
            key = str(path.relative_to(root))
            if path.is_symlink():
                found[key] = f"-> {path.readlink()}"
            elif path.is_file():
                found[key] = (path.read_bytes(), oct(stat.S_IMODE(path.stat().st_mode)), path.stat().st_mtime_ns)
            elif not any(path.iterdir()):
                found[key] = "empty directory"
    return found


def send(host: SshHost, source: Path, to: str = "~/work") -> int:
    return host.send_tree(source, files_to_send(source).files, to)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    plant(root, {name: name.encode("utf-8", "surrogateescape") * 100 for name in STRANGE})
    (root / "sub" / "x").chmod(0o755)
    (root / "empty").write_bytes(b"")
    (root / "dead").symlink_to("nowhere")
    (root / "sub" / "up").symlink_to("../a b")
    (root / "way").symlink_to("sub")
    return root


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "small disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], check=False).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_uploaded_tree_is_downloaded_unchanged(host: SshHost, sshd: Sshd, source: Path, tmp_path: Path) -> None:
    sent = send(host, source)
    assert sent == files_to_send(source).bytes
    assert snapshot(sshd.home / "work") == snapshot(source)
    skipped: list[SkippedDownload] = []
    names = host.fetch_tree("~/work", [], tmp_path / "back", skipped.append)
    assert [(one.path, one.reason) for one in skipped] == [("dead", "dangling symlink, to nowhere")]
    (source / "dead").unlink()
    assert snapshot(tmp_path / "back") == snapshot(source)
    assert sorted(names) == sorted(files_to_send(source).files)


def test_only_changed_files_are_transferred(host: SshHost, sshd: Sshd, source: Path, tmp_path: Path) -> None:
    send(host, source)
    assert send(host, source) == 0
    (source / "a b").write_bytes(b"12345")
    assert send(host, source) == 5
    (source / "sub" / "x").chmod(0o644)
    assert send(host, source) == 500
    assert snapshot(sshd.home / "work") == snapshot(source)
    back = tmp_path / "back"
    host.fetch_tree("~/work", [], back)
    inode = (back / "sub/x").stat().st_ino
    (sshd.home / "work" / "a b").write_bytes(b"newer")
    host.fetch_tree("~/work", [], back)
    assert (back / "a b").read_bytes() == b"newer"
    assert (back / "sub/x").stat().st_ino == inode


def test_upload_deletes_removed_files_and_replaces_changed_file_types(host: SshHost, sshd: Sshd, source: Path) -> None:
    send(host, source)
    work = sshd.home / "work"
    (source / "sub" / "deep" / "y").unlink()  # its directory with it
    (source / "way").unlink()
    plant(source, {"way/inside": b"a directory where a link was"})
    (source / "a b").unlink()
    plant(source, {"a b/c": b"a directory where a file was"})
    (source / "ünï").unlink()
    (source / "ünï").symlink_to("sub/x")
    plant(work, {"left by a run": b"?", "dir/too": b"?", "quo'te\"$x`y`.d/z": b"?"})
    (work / "-rf").unlink()
    plant(work, {"-rf/is a directory now": b"?"})
    (work / "an empty one").mkdir()
    send(host, source)
    after = snapshot(work)
    expected = snapshot(source)
    expected.pop("sub/deep", None)  # empty directories do not travel
    assert after == expected
    assert (work / "sub" / "x").read_bytes() == b"sub/x" * 100


def test_upload_does_not_follow_symlink_on_node(host: SshHost, sshd: Sshd, source: Path) -> None:
    send(host, source)
    outside = sshd.home / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"stays")
    work = sshd.home / "work"
    for path in sorted((work / "sub").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    (work / "sub").rmdir()
    (work / "sub").symlink_to(outside)
    send(host, source)
    assert snapshot(work) == snapshot(source)
    assert snapshot(outside).keys() == {"precious"}


def test_upload_refuses_directory_created_by_others(host: SshHost, sshd: Sshd, source: Path) -> None:
    plant(sshd.home / "mine", {"thesis.tex": b"years"})
    with pytest.raises(RemoteCommandError, match="did not put there"):
        send(host, source, "~/mine")
    for dangerous in ("~", "~/", ".", "~/..", "/", str(sshd.home.parent)):
        with pytest.raises(RemoteCommandError, match="contains the home directory"):
            send(host, source, dangerous)
    assert snapshot(sshd.home / "mine").keys() == {"thesis.tex"}
    assert send(host, source, str(sshd.home / "new" / "deep")) > 0
    (sshd.home / "empty").mkdir()
    assert send(host, source, "empty") > 0


def test_upload_completes_after_previous_sender_was_killed(sshd: Sshd, tmp_path: Path) -> None:
    source = tmp_path / "source"
    plant(source, {f"small {n}": b"x" * 1000 for n in range(50)})
    with connect(sshd.node(), sshd.key, clock=SystemClock()) as host:
        send(host, source)
        before = snapshot(sshd.home / "work")
        (source / "small 7").write_bytes(b"changed")
        (source / "z big").write_bytes(os.urandom(1 << 20) * 200)
        code = (
            "import sys\n"
            "from pathlib import Path\n"
            "from cloudgpu.clock import SystemClock\n"
            "from cloudgpu.launch.inventory import Node\n"
            "from cloudgpu.ssh.connection import connect\n"
            "from cloudgpu.ssh.transfer.local_tree import files_to_send\n"
            f"host = connect(Node(**{asdict(sshd.node())!r}), Path({str(sshd.key)!r}), clock=SystemClock())\n"
            f"host.send_tree(Path({str(source)!r}), files_to_send(Path({str(source)!r})).files, '~/work')\n"
        )
        sender = subprocess.Popen([sys.executable, "-c", code])
        part = sshd.home / "work" / ".cloudgpu-part" / "file"
        until(lambda: part.exists() and part.stat().st_size > 1 << 20)
        sender.send_signal(signal.SIGKILL)
        sender.wait()
        until(lambda: not part.parent.exists())
        half = snapshot(sshd.home / "work")
        assert "z big" not in half
        assert {name for name in before if half[name] != before[name]} <= {"small 7"}
        send(host, source)
    assert snapshot(sshd.home / "work") == snapshot(source)


def test_concurrent_uploads_leave_intact_tree(sshd: Sshd, source: Path) -> None:
    plant(source, {f"many/{n}": os.urandom(3000) for n in range(500)})

    def once(_: int) -> int:
        with connect(sshd.node(), sshd.key, clock=SystemClock()) as host:
            return send(host, source)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(once, range(4)))
    assert snapshot(sshd.home / "work") == snapshot(source)


def test_full_node_disk_fails_upload_without_partial_files(host: SshHost, source: Path, full_disk: Path) -> None:
    (source / "big").write_bytes(bytes(4 << 20))
    with pytest.raises(RemoteCommandError, match="No space left on device"):
        send(host, source, str(full_disk / "work"))
    with pytest.raises(RemoteCommandError, match="No space left on device"):
        host.put_bytes(bytes(4 << 20), str(full_disk / "file"))
    assert not (full_disk / "file").exists()
    (source / "big").unlink()
    send(host, source, str(full_disk / "work"))
    assert snapshot(full_disk / "work") == snapshot(source)


def test_full_local_disk_fails_download_without_partial_files(
    host: SshHost, sshd: Sshd, source: Path, full_disk: Path
) -> None:
    send(host, source)
    (sshd.home / "work" / "big").write_bytes(bytes(4 << 20))
    skipped: list[SkippedDownload] = []
    names = host.fetch_tree("~/work", [], full_disk / "out", skipped.append)
    assert ["needs 4.0 MiB" in one.reason for one in skipped if one.path == "big"] == [True]
    assert set(snapshot(full_disk / "out")) == set(names)
    with pytest.raises(StateError, match="no space left"):
        host.get_file("~/work/big", full_disk / "big")
    assert not [name for name in snapshot(full_disk) if "part" in name or "big" in name]
    assert host.run(RemoteCommand("echo", "on")).stdout == "on\n"


def test_upload_tolerates_files_changed_or_deleted_during_transfer(host: SshHost, sshd: Sshd, source: Path) -> None:
    big = source / "big"
    big.write_bytes(b"a" * (40 << 20))
    files = files_to_send(source).files
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(host.send_tree, source, [*files, "never was there"], "~/work")
        until((sshd.home / "work" / ".cloudgpu-part" / "file").exists)
        big.write_bytes(b"b" * (30 << 20))
        (source / "dead").unlink()
        sending.result()
    assert snapshot(sshd.home / "work") == snapshot(source)


def test_unreadable_file_fails_upload_without_changing_node(
    host: SshHost, sshd: Sshd, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(host, source)
    before = snapshot(sshd.home / "work")
    (source / "a b").write_bytes(b"new")
    real = send_module.open_unbuffered

    def broken(path: Path) -> Any:
        if path.name == "a b":
            raise OSError(5, "Input/output error", str(path))
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(send_module, "open_unbuffered", broken)
        with pytest.raises(StateError, match="a b: Input/output error"):
            send(host, source)
    assert snapshot(sshd.home / "work") == before


def test_download_selects_files_by_pattern(host: SshHost, sshd: Sshd, tmp_path: Path) -> None:
    plant(sshd.home / "run", {name: b"1" for name in ("m.pt", "log/a.txt", "log/b.txt", "ck/1/w.pt", "ck/2/w.pt", "x")})
    (sshd.home / "run" / "pipe").parent.mkdir(exist_ok=True)
    os.mkfifo(sshd.home / "run" / "pipe")

    def fetch(*patterns: str) -> list[str]:
        return host.fetch_tree("~/run", patterns, tmp_path / "-".join(patterns).replace("/", "_"))

    assert fetch("*.pt") == ["m.pt"]
    assert fetch("**/*.pt") == ["ck/1/w.pt", "ck/2/w.pt", "m.pt"]
    assert fetch("log/", "./x") == ["log/a.txt", "log/b.txt", "x"]
    assert fetch("ck/*/") == ["ck/1/w.pt", "ck/2/w.pt"]
    assert fetch("nothing*") == []
    with pytest.raises(UsageError, match="not a valid file pattern"):
        fetch("[a")
    with pytest.raises(RemoteCommandError, match="no such directory"):
        host.fetch_tree("~/missing", [], tmp_path / "m")


def test_download_tolerates_growing_and_truncated_files(host: SshHost, sshd: Sshd, tmp_path: Path) -> None:
    plant(sshd.home / "run", {"a growing": b"x" * (8 << 20), "shrinks": b"y" * (8 << 20)})
    real = host.start

    def meddling(command: RemoteCommand, stdin: Any = b"") -> Any:
        if "read" in command.parts:
            with (sshd.home / "run" / "a growing").open("ab") as log:
                log.write(b"more")
            os.truncate(sshd.home / "run" / "shrinks", 5)
        return real(command, stdin)

    host.start = meddling  # type: ignore[method-assign]
    host.fetch_tree("~/run", [], tmp_path / "out")
    assert (tmp_path / "out" / "a growing").read_bytes() == b"x" * (8 << 20)
    assert (tmp_path / "out" / "shrinks").read_bytes() == b"yyyyy"


def test_node_killed_during_download_leaves_only_complete_files(host: SshHost, sshd: Sshd, tmp_path: Path) -> None:
    plant(sshd.home / "run", {"a": b"first", "b": bytes(300 << 20)})
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(host.fetch_tree, "~/run", [], tmp_path / "out")
        until((tmp_path / "out" / "a").exists)
        sshd.kill()
        with pytest.raises(ConnectError):
            fetching.result()
    assert snapshot(tmp_path / "out").keys() == {"a"}


def test_single_files_are_written_and_read_with_mode(host: SshHost, sshd: Sshd, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    for path in ("~/deep/er/a b'c", str(sshd.home / "absolute"), "relative to nothing"):
        where = path if path.startswith(("~", "/")) else f"{sshd.home}/{path}"
        host.put_bytes(content, where, mode=0o640)
        host.get_file(where, tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == content
    assert stat.S_IMODE((sshd.home / "absolute").stat().st_mode) == 0o640
    host.put_bytes(b"", "~/absolute")
    assert stat.S_IMODE((sshd.home / "absolute").stat().st_mode) == 0o600
    assert not list(sshd.home.glob("**/*.part.*"))
    with pytest.raises(RemoteCommandError, match="No such file"):
        host.get_file("~/missing", tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    with pytest.raises(RemoteCommandError, match="cannot write"):
        host.put_bytes(b"x", "/proc/no/such")


def test_transfers_ignore_output_of_login_shell(tmp_path: Path, start_sshd: Any, source: Path) -> None:
    """Some users' `.bashrc` prints a message at login."""
    talking = tmp_path / "talking"
    talking.write_text('#!/bin/sh\necho Welcome to the lab!\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    talking.chmod(0o755)
    server = start_sshd(tmp_path / "sshd", extra=f"ForceCommand {talking}")
    try:
        with connect(server.node(), server.key, clock=SystemClock()) as host:
            send(host, source)
            assert snapshot(server.home / "work") == snapshot(source)
            host.fetch_tree("~/work", [], tmp_path / "back")
            (source / "dead").unlink()  # a link to nowhere is not fetched
            assert snapshot(tmp_path / "back") == snapshot(source)
            host.get_file("~/work/a b", tmp_path / "got")
            assert (tmp_path / "got").read_bytes() == b"a b" * 100
    finally:
        server.kill()


@pytest.mark.parametrize(
    "answer", ["", "rubbish", "12345678rubbish", '12345678{"wanted": [99], "extra": 0}', "12345678[]"]
)
def test_malformed_node_response_is_reported(tmp_path: Path, start_sshd: Any, source: Path, answer: str) -> None:
    lying = tmp_path / "lying"
    lying.write_text(f"#!/bin/sh\ncat > /dev/null\nprintf '\\036cloudgpu\\036'\nprintf '%s' '{answer}'\n")
    lying.chmod(0o755)
    server = start_sshd(tmp_path / "sshd", extra=f"ForceCommand {lying}")
    try:
        with connect(server.node(), server.key, clock=SystemClock()) as host:
            with pytest.raises(RemoteCommandError, match="the node's response is malformed"):
                send(host, source)
            if answer != "12345678[]":  # an empty list is a fine answer to `list`
                with pytest.raises((RemoteCommandError, StateError), match="malformed"):
                    host.fetch_tree("~/work", [], tmp_path / "back")
    finally:
        server.kill()


def test_interrupted_upload_keeps_previous_file(host: SshHost, sshd: Sshd) -> None:
    host.put_bytes(b"old", "~/file")
    short = host.try_run(RemoteCommand("sh", "-c", send_module._PUT, "sh", "~/file", "10", "600"), stdin=b"only 5")
    assert "interrupted" in short.stderr
    assert (sshd.home / "file").read_bytes() == b"old"
    assert not list(sshd.home.glob("*.part.*"))


def until(true: Callable[[], bool], *, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.005)
