"""Fetch trees from the real node program in a local process, and from nodes that send invalid data."""

import ast
import json
import os
import shlex
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from cloudgpu.errors import RemoteCommandError, StateError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.transfer import listing, node_program
from cloudgpu.ssh.transfer.fetch import fetch_tree
from cloudgpu.ssh.transfer.listing import SkippedDownload, validate_entry, validate_skipped
from cloudgpu.ssh.transfer.local_tree import files_to_send
from cloudgpu.ssh.transfer.node_read import FOLLOWS, SKIPPED
from cloudgpu.ssh.transfer.node_tree import MARK
from cloudgpu.ssh.transfer.send import send_tree

NODE = Node(0, "i-0", "127.0.0.1", 22, "lea", ("SHA256:x",), "127.0.0.1", "p3.2xlarge", "us-east-1a", "V100", 1, True)


class Output:
    """The output of a command, in pieces; counts how many bytes were taken."""

    def __init__(self, pieces: Iterable[bytes], exit_code: int = 0, stderr: bytes = b"") -> None:
        self._pieces = pieces
        self.exit_code = exit_code
        self.stderr = bytearray(stderr)
        self.taken = 0
        self.closed = False

    def output(self, timeout_s: float | None = None, whole_s: float | None = None) -> Iterator[bytes]:
        del timeout_s, whole_s
        for piece in self._pieces:
            self.taken += len(piece)
            yield piece

    def count(self, size: int) -> None:
        return

    def close(self) -> None:
        self.closed = True


class LocalNode:
    """Runs the commands of a node in a local process."""

    node = NODE

    def __init__(self, home: Path) -> None:
        self.home = home

    def start(self, command: RemoteCommand, stdin: bytes | Iterable[bytes] = b"") -> Output:
        given = stdin if isinstance(stdin, bytes) else b"".join(stdin)
        done = subprocess.run(
            shlex.split(command.wire()),
            input=given,
            capture_output=True,
            check=False,
            timeout=60,
            env={**os.environ, "HOME": str(self.home)},
        )
        return Output([done.stdout], done.returncode, done.stderr)


class ScriptedNode:
    """Answers every command with the next of these outputs."""

    node = NODE

    def __init__(self, *answers: Output) -> None:
        self.answers = list(answers)

    def start(self, command: RemoteCommand, stdin: bytes | Iterable[bytes] = b"") -> Output:
        del command, stdin
        return self.answers.pop(0)


def message(value: object) -> bytes:
    text = json.dumps(value).encode()
    return struct.pack(">Q", len(text)) + text


def listed(*entries: object, skipped: object = (), unnamed: int = 0) -> Output:
    return Output([MARK + message({"entries": entries, "skipped": skipped, "unnamed": unnamed})])


def contents(*files: bytes, short: object = (), failed: object = ()) -> Output:
    trailer = message({"short": dict(short), "failed": dict(failed)})
    return Output([MARK, *(FOLLOWS + file for file in files), trailer])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work directory on a node, as training libraries leave it."""
    root = tmp_path / "home" / "work"
    for folder in ("outputs/ckpt-100", "outputs/ckpt-200"):
        (root / folder).mkdir(parents=True)
        (root / folder / "model.pt").write_text(folder)
    (root / "train.py").write_text("code")
    return root


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "to"


def fetched(work: Path, to: Path, *patterns: str) -> tuple[list[str], dict[str, SkippedDownload]]:
    skipped: list[SkippedDownload] = []
    names = fetch_tree(LocalNode(work.parent), str(work), patterns, to, skipped.append)
    return names, {one.path: one for one in skipped}


def test_absolute_symlink_inside_the_tree_is_fetched_as_relative(work: Path, to: Path) -> None:
    (work / "outputs/latest").symlink_to(work / "outputs/ckpt-200")
    (work / "outputs/best").symlink_to(work / "outputs/latest")
    (work / "outputs/ckpt-100/next").symlink_to(work / "outputs/ckpt-200/model.pt")
    names, skipped = fetched(work, to, "outputs/")
    assert skipped == {}
    assert {"outputs/latest", "outputs/best", "outputs/ckpt-100/model.pt"} <= set(names)
    assert (to / "outputs/latest").readlink() == Path("ckpt-200")
    assert (to / "outputs/best").readlink() == Path("latest")
    assert (to / "outputs/ckpt-100/next").readlink() == Path("../ckpt-200/model.pt")
    assert (to / "outputs/best/model.pt").read_text() == "outputs/ckpt-200"


def test_work_directory_behind_a_symlink_is_fetched_normally(work: Path, to: Path) -> None:
    (work.parent / "scratch").symlink_to(work)
    (work / "outputs/latest").symlink_to(work.parent / "scratch/outputs/ckpt-200")
    (work / "outputs/roundabout").symlink_to("ckpt-100/../ckpt-200")
    _, skipped = fetched(work.parent / "scratch", to, "outputs/")
    assert skipped == {}
    assert (to / "outputs/latest").resolve() == (to / "outputs/ckpt-200").resolve()
    assert (to / "outputs/roundabout").resolve() == (to / "outputs/ckpt-200").resolve()


def test_unfetchable_entries_are_reported_and_the_rest_is_fetched(work: Path, to: Path) -> None:
    outputs = work / "outputs"
    (outputs / "out").symlink_to("/etc/passwd")
    (outputs / "up").symlink_to("../../..")
    (outputs / "dead").symlink_to("nowhere")
    (outputs / "under-a-file").symlink_to("ckpt-100/model.pt/x")
    (outputs / "loop").symlink_to("loop")
    (outputs / "hidden").symlink_to(outputs / "up/etc")
    os.mkfifo(outputs / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(outputs / "socket"))
        names, skipped = fetched(work, to, "outputs/")
    assert names == ["outputs/ckpt-100/model.pt", "outputs/ckpt-200/model.pt"]
    assert {path.removeprefix("outputs/"): one.reason.partition(",")[0] for path, one in skipped.items()} == {
        "out": "symlink that points outside the directory",
        "up": "symlink that points outside the directory",
        "hidden": "dangling symlink",
        "dead": "dangling symlink",
        "under-a-file": "Not a directory: symlink to ckpt-100/model.pt/x",
        "loop": "symlink loop",
        "pipe": "named pipe",
        "socket": "socket",
    }
    assert not any(one.lost for one in skipped.values())
    assert sorted(path.name for path in (to / "outputs").iterdir()) == ["ckpt-100", "ckpt-200"]


def test_unreadable_files_are_reported_and_the_rest_is_fetched(
    work: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a denied permission (even as root), an I/O error and an unlistable directory."""
    bad = {"ckpt-100/model.pt": "access", "ckpt-200/model.pt": "read"}
    (work / "outputs/closed").mkdir()
    (work / "outputs/good").write_text("good")
    program = (
        node_program._PROGRAM
        + f"""
_access, _open, _scandir, _bad = os.access, opened, os.scandir, {bad!r}
def _kind(path): return _bad.get(b"/".join(path.split(b"/")[-2:]).decode())
_dense = open(sys.executable, "rb")
class Failing:
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def fileno(self): return _dense.fileno()
    def read(self, count): raise OSError(5, "Input/output error")
os.access = lambda path, mode: _kind(path) != "access" and _access(path, mode)
opened = lambda path: Failing() if _kind(path) == "read" else _open(path)
def _listed(path):
    if path.rstrip(b"/").endswith(b"closed"): raise PermissionError(13, "Permission denied")
    return _scandir(path)
os.scandir = _listed
""".encode()
    )
    tail = b'if __name__ == "__main__":'
    whole = program.replace(tail, b"if False:", 1) + b"sys.exit(main(sys.argv[-2], sys.argv[-1]))\n"
    monkeypatch.setattr(node_program, "_PROGRAM", whole)
    names, skipped = fetched(work, to, "outputs/")
    assert names == ["outputs/good"]
    assert {path: one.reason for path, one in skipped.items() if one.lost} == {
        "outputs/ckpt-100/model.pt": "cannot be read: Permission denied",
        "outputs/ckpt-200/model.pt": "cannot be read: Input/output error",
        "outputs/closed/": "cannot be read: Permission denied",
    }
    assert not (to / "outputs/ckpt-200/model.pt").exists()


def test_vanished_file_is_reported_and_local_copy_is_kept(to: Path) -> None:
    there = Output([MARK, FOLLOWS + b"b", SKIPPED, message({"short": {}, "failed": {"1": "vanished"}})])
    (to / "kept").parent.mkdir(parents=True)
    (to / "kept").write_text("from before")
    skipped: list[SkippedDownload] = []
    node = ScriptedNode(listed(["kept", 1000, 1, 0o644, None], ["b", 1, 1, 0o644, None]), there)
    assert fetch_tree(node, "/work", [], to, skipped.append) == ["b"]
    assert [one.path for one in skipped if one.lost] == ["kept"]
    assert (to / "kept").read_text() == "from before"


@pytest.mark.parametrize("older", [True, False])
def test_file_that_was_not_sent_is_not_truncated(to: Path, older: bool) -> None:
    """A node may report a shorter size for any file, and the local copy may be a link."""
    to.mkdir()
    if older:
        (to.parent / "mine").write_bytes(b"older")
        (to / "a").symlink_to(to.parent / "mine")
    entries = listed(["a", 2, 1, 0o644, None], ["b", 1, 1, 0o644, None])
    there = Output([MARK, FOLLOWS + b"b", SKIPPED, message({"short": {"1": 0}, "failed": {"1": "vanished"}})])
    assert fetch_tree(ScriptedNode(entries, there), "/work", [], to) == ["b"]
    assert not older or (to / "a").read_bytes() == b"older"


def test_absolute_symlink_in_the_workdir_is_sent_as_relative(work: Path, tmp_path: Path) -> None:
    (work / "outputs/latest").symlink_to(work / "outputs/ckpt-200")
    (work / "elsewhere").symlink_to("/etc")
    listing = files_to_send(work)
    assert [one.path for one in listing.skipped] == ["elsewhere"]
    node = LocalNode(tmp_path / "node")
    (tmp_path / "node").mkdir()
    send_tree(node, work, listing.files, "~/copy")
    assert (tmp_path / "node/copy/outputs/latest").readlink() == Path("ckpt-200")
    assert send_tree(node, work, listing.files, "~/copy") == 0


def test_empty_directories_are_sent_and_removed_again(work: Path, tmp_path: Path) -> None:
    node, copy = LocalNode(tmp_path / "node"), tmp_path / "node" / "copy"
    (tmp_path / "node").mkdir()

    def send() -> list[str]:
        listing = files_to_send(work)
        send_tree(node, work, (*listing.files, *listing.folders), "~/copy")
        assert send_tree(node, work, (*listing.files, *listing.folders), "~/copy") == 0
        return sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_dir())

    (work / "runs" / "logs").mkdir(parents=True)
    (work / "outputs" / "empty").mkdir()
    assert {"runs", "runs/logs", "outputs/empty"} <= set(send())
    (work / "outputs" / "empty").rmdir()
    assert "outputs/empty" not in send()  # nothing else changed
    (work / "runs" / "logs").rmdir()
    (work / "runs" / "logs").write_text("a file now")
    assert "runs/logs" not in send()
    (work / "runs" / "logs").unlink()
    (work / "runs" / "logs").mkdir()
    assert "runs/logs" in send()
    (copy / "runs" / "logs").rmdir()
    (copy / "runs" / "logs").symlink_to("/etc")
    assert "runs/logs" in send()
    assert not (copy / "runs" / "logs").is_symlink()


def test_empty_directories_are_fetched_but_are_no_files(work: Path, to: Path) -> None:
    for name in ("outputs/empty/inner", "outputs/a.dir", "other"):
        (work / name).mkdir(parents=True)
    names, skipped = fetched(work, to, "outputs/", "*.dir")
    assert (to / "outputs/empty/inner").is_dir()
    assert (to / "outputs/a.dir").is_dir()
    assert not (to / "other").exists()
    assert not [name for name in names if name.endswith("/")]
    assert not skipped
    assert fetched(work, to, "outputs/")[0] == names  # also if nothing is missing
    (to / "outputs/a.dir").rmdir()
    (to / "outputs/a.dir").symlink_to("/etc")
    _, skipped = fetched(work, to, "outputs/")
    assert "a.dir is in the way" in skipped["outputs/a.dir/"].reason


def test_node_program_is_a_standalone_python_3_8_file() -> None:
    tree = ast.parse(node_program._PROGRAM, feature_version=(3, 8))
    froms = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert not {name for name in froms | names if str(name).startswith("cloudgpu")}
    assert node_program._PROGRAM.rstrip().endswith(b"sys.exit(main(sys.argv[-2], sys.argv[-1]))")


FORGED = [
    [["../../.ssh/authorized_keys", 1, 1, 0o644, None]],
    [["/root/.ssh/authorized_keys", 1, 1, 0o644, None]],
    [["a\0b", 1, 1, 0o644, None]],
    [["a\ud800b", 1, 1, 0o644, None]],
    [["link", 0, 0, 0, "/etc"]],
    [["link", 0, 0, 0, "a\0b"]],
    [["link", 0, 0, 0, "a\ud800"]],
    [["huge", 1 << 70, 1, 0o644, None]],
    [["late", 1, 1 << 70, 0o644, None]],
    [["late", 1, -(1 << 70), 0o644, None]],
    [["real", 1.5, 1, 0o644, None]],
    [["none", None, 1, 0o644, None]],
    [["not", "a", "list"]],
    ["text"],
    [{}],
]


@pytest.mark.parametrize("entries", FORGED, ids=lambda entries: repr(entries)[:40])
def test_forged_entries_write_nothing(to: Path, entries: list[object]) -> None:
    with pytest.raises(StateError, match=r"malformed|outside the download directory"):
        fetch_tree(ScriptedNode(listed(*entries), contents(b"x")), "/work", [], to)
    assert not to.exists() or not list(to.iterdir())


def endless(piece: bytes) -> Iterator[bytes]:
    while True:
        yield piece


def chained(*parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        yield from part


@pytest.mark.parametrize(
    "pieces",
    [
        endless(b"noise" * 10_000),
        chained([MARK], endless(b"\0" * 100_000)),
        chained([MARK + struct.pack(">Q", 1 << 62)], endless(b"[" * 100_000)),
        chained([MARK + message({"entries": [], "skipped": [], "unnamed": 0})], endless(b"more" * 10_000)),
        [MARK + struct.pack(">Q", 200_000) + b"[" * 200_000],
        [MARK + message([])],
        [MARK + message({"entries": 1})],
        [MARK + message(None)],
        [MARK],
        [],
    ],
)
def test_endless_or_malformed_file_list_is_rejected(to: Path, pieces: Iterable[bytes]) -> None:
    answer = Output(pieces)
    with pytest.raises(RemoteCommandError, match="malformed"):
        fetch_tree(ScriptedNode(answer), "/work", [], to)
    assert answer.taken < 20 << 20


@pytest.mark.parametrize(
    "pieces",
    [
        chained([MARK, FOLLOWS + b"x"], endless(b"more" * 10_000)),
        [MARK, FOLLOWS + b"xmore than was announced"],
        [MARK, b"?x", message({"short": {}, "failed": {}})],
        [MARK, FOLLOWS],
        endless(b"noise" * 10_000),
    ],
)
def test_endless_or_malformed_contents_are_rejected(to: Path, pieces: Iterable[bytes]) -> None:
    answer = Output(pieces)
    with pytest.raises(RemoteCommandError):
        fetch_tree(ScriptedNode(listed(["a", 1, 1, 0o644, None]), answer), "/work", [], to)
    assert answer.taken < 20 << 20
    assert {path.name for path in to.iterdir()} <= {"a"}


@pytest.mark.parametrize(
    "trailer",
    [
        {"short": {"-1": 0, "99": 0, "x": 0, "0": "0", "²": 1, "9" * 5000: 1}, "failed": []},
        {"short": [], "failed": {"7": "x", "": "y"}},
        [],
        None,
        {},
    ],
)
def test_malformed_trailer_is_ignored(to: Path, trailer: object) -> None:
    node = ScriptedNode(listed(["a", 1, 1, 0o644, None]), Output([MARK, FOLLOWS + b"x", message(trailer)]))
    assert fetch_tree(node, "/work", [], to) == ["a"]
    assert (to / "a").read_bytes() == b"x"


def test_conflicting_names_are_rejected_and_never_escape_the_directory(to: Path, tmp_path: Path) -> None:
    """Covers duplicate names, a file that is also a directory, and a symlink used as a parent directory."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for entries in (
        [["a", 1, 1, 0o644, None], ["a/b", 1, 1, 0o644, None]],
        [["l", 0, 0, 0, "d"], ["l/x", 0, 0, 0, "y"]],
        [["d/x", 1, 1, 0o644, None], ["d", 0, 0, 0, "e"]],
    ):
        files = [b"x" for entry in entries if entry[4] is None]
        skipped: list[SkippedDownload] = []
        fetch_tree(ScriptedNode(listed(*entries), contents(*files)), "/work", [], to, skipped.append)
        assert [one.lost for one in skipped] == [True]
        assert "move or delete it" in skipped[0].reason
    twice = [["t", 1, 1, 0o644, None], ["t", 1, 1, 0o644, None]]
    fetch_tree(ScriptedNode(listed(*twice), contents(b"1", b"2")), "/work", [], to)
    assert (to / "t").read_bytes() == b"2"
    assert list(outside.iterdir()) == []


def test_skipped_entry_text_is_bounded_and_validated() -> None:
    one = validate_skipped("node 1", ["p" * 100_000, "r" * 100_000, True])
    assert len(one.path) + len(one.reason) <= listing._LONGEST_NAME + listing._LONGEST_REASON
    for fields in (None, [], ["p"], ["p", 1, True], [1, "r", True], ["p", "r", "yes"]):
        with pytest.raises(StateError, match="malformed"):
            validate_skipped("node 1", fields)
    assert validate_entry("node 1", ["a", 0, -1, 0, None]).mtime_ns == -1
