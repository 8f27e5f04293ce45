"""The file transfer program that runs on nodes, called directly."""

import ast
import io
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.ssh.transfer import node_tree

SOURCE = Path(node_tree.__file__)


def test_node_program_uses_only_python_3_8_standard_library() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    allowed = "__future__ contextlib errno fcntl hashlib json os re shutil signal stat struct sys typing collections"
    assert imported <= set(allowed.split())


@pytest.mark.parametrize("rubbish", [b"", b"\0" * 7, b"\xff" * 8, b"\0" * 7 + b"\x05abc"])
def test_truncated_stream_changes_nothing(
    tmp_path: Path, rubbish: bytes, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(rubbish)))
    (tmp_path / "work").mkdir()
    code = node_tree.main("apply", "~/work")
    assert code == 1
    assert not list((tmp_path / "work").iterdir())


SILENCE_S = 0.5


@pytest.mark.parametrize("bytes_sent", [0, 100_000, 3 << 20], ids=["no manifest", "a small file", "a large file"])
def test_silent_sender_times_out_and_releases_the_directory(tmp_path: Path, bytes_sent: int) -> None:
    """The connection may never close, for example after a router dropped it, so the lock holder must time out."""
    impatient = SOURCE.read_text().replace("SILENT_S = 120", f"SILENT_S = {SILENCE_S}")
    size = 4 << 20 if bytes_sent > 200_000 else 200_000
    message = json.dumps([["file", size, 1, 0o644, None]]).encode()
    header = 2 * (struct.pack(">Q", len(message)) + message) + struct.pack(">Q", 2) + b"[]"
    sent = header + bytes(bytes_sent) if bytes_sent else header[:4]

    def started(program: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", program, "apply", "~/work"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, env={**os.environ, "HOME": str(tmp_path)}, **pipes)

    silent = started(impatient)
    assert silent.stdin is not None
    silent.stdin.write(sent)
    silent.stdin.flush()
    following = started(SOURCE.read_text())  # a busy machine may send it nothing for a while
    _, said = following.communicate(header + bytes(size), timeout=120)
    assert (following.returncode, said) == (0, b"")
    assert silent.wait(120) == 1
    assert silent.stderr is not None
    assert silent.stderr.read().decode().strip() == f"the transfer timed out: no data received for {SILENCE_S} s"
    assert [(path.name, path.stat().st_size) for path in (tmp_path / "work").iterdir()] == [("file", size)]
    for pipe in (silent.stdin, silent.stdout, silent.stderr):
        assert pipe is not None
        pipe.close()


def test_apply_rejects_a_directory_not_created_by_cloudgpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis").write_text("years")
    empty = b"\0" * 7 + b"\x02[]"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(empty + empty)))
    assert node_tree.main("apply", "~/work") == 1
    assert (tmp_path / "work" / "thesis").read_text() == "years"


def test_files_with_whole_second_mtimes_are_compared_by_the_second() -> None:
    exact = node_tree.Entry("f", 5, 1_700_000_000_123_456_789, 0o644, None)
    coarse = exact._replace(mtime_ns=1_700_000_000_000_000_000)
    assert node_tree.same(exact, exact)
    assert node_tree.same(exact, coarse)
    assert not node_tree.same(exact, exact._replace(mtime_ns=exact.mtime_ns + 1))
    assert not node_tree.same(exact, exact._replace(size=6))
    assert not node_tree.same(exact, exact._replace(mode=0o755))
    assert not node_tree.same(exact, exact._replace(link="x"))
    assert not node_tree.same(exact, None)


def oldest_python() -> str:
    """Return the oldest available Python from 3.8 on; a name on the PATH may be a stub that does not run."""
    for minor in range(8, sys.version_info.minor):
        found = shutil.which(f"python3.{minor}")
        if found is not None and subprocess.run([found, "-V"], capture_output=True, check=False).returncode == 0:
            return found
    return sys.executable


def test_node_program_runs_on_the_oldest_python(tmp_path: Path) -> None:
    done = subprocess.run(
        [oldest_python(), "-I", str(SOURCE), "plan", "~/w"],
        input=b"\0" * 7 + b"\x02[]",
        capture_output=True,
        check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert done.stderr == b""
    assert done.stdout.endswith(b'{"wanted": [], "extra": 0}')


LARGE = os.urandom(node_tree.CHUNK_BYTES) * 3 + b"rest"


def in_a_pipe(content: bytes, tmp_path: Path) -> subprocess.CompletedProcess[bytes]:
    """Run `write` in another process with a pipe as standard input, after reading the first bytes."""
    script = (
        f"import sys; sys.path.insert(0, {str(SOURCE.parents[3])!r})\n"
        "from cloudgpu.ssh.transfer import node_tree as tree\n"
        "source = tree.widened(sys.stdin.buffer)\n"
        "assert tree.take(source, 3) == b'abc'\n"
        f"tree.write(b'{tmp_path}/file', {len(LARGE)}, source)\n"
        "assert source.read() == b'next'\n"
    )
    return subprocess.run([sys.executable, "-c", script], input=content, capture_output=True, timeout=60, check=False)


def test_large_file_is_spliced_from_the_pipe_without_overreading(tmp_path: Path) -> None:
    done = in_a_pipe(b"abc" + LARGE + b"next", tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "file").read_bytes() == LARGE


def test_truncated_large_file_is_an_error(tmp_path: Path) -> None:
    done = in_a_pipe(b"abc" + LARGE[:-5], tmp_path)
    assert b"RefusedError: the transfer was interrupted" in done.stderr


def test_large_file_is_written_when_stdin_is_not_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "stream").write_bytes(LARGE + b"next")
    with (tmp_path / "stream").open("rb") as source:
        node_tree.write(os.fsencode(tmp_path / "file"), len(LARGE), source)
        assert source.read() == b"next"
    assert (tmp_path / "file").read_bytes() == LARGE
