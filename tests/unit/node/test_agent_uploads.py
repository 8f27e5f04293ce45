"""Uploads of checkpoints and outputs report what they skip, and unusual files do not stop them."""

import json
import os
from pathlib import Path

import pytest

from cloudgpu.node.agent import checkpoint_upload, files, s3_upload


class Uploaded:
    """Accept uploads and record their names; the files are real."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def send(self, path, relative, state, keep):
        del state, keep
        relative.encode()  # required for the object URL
        with open(path, "rb", opener=s3_upload._regular) as file:
            file.read()
        self.names.append(relative)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "ckpt"
    (folder / "100").mkdir(parents=True)
    (folder / "100/model.pt").write_text("weights")
    return folder


@pytest.fixture
def look(tmp_path: Path, source: Path):
    """Run a final scan; return the uploaded names and the state as `kept` reads it."""

    def go(*patterns: str, **more: str):
        (tmp_path / "run").mkdir(exist_ok=True)
        spec = {"source": str(source), "bucket": "b", "region": "r", "endpoint": "http://s3", "patterns": patterns}
        spec.update(more)
        path = tmp_path / "run/keep.json"
        path.write_text(json.dumps({"spec": spec, "files": {}, "failed": {}}))
        uploader = checkpoint_upload.Uploader(str(path.parent), "keep")
        uploader._bucket = Uploaded()
        state = uploader.look(whole=True)
        return uploader._bucket.names if more.get("at_end") else sorted(uploader._bucket.names), state

    return go


def test_special_files_and_external_links_are_reported_as_skipped(source, look):
    (source / "latest").symlink_to(source / "100")
    (source / "best.pt").symlink_to("100/model.pt")
    (source / "scratch").symlink_to("/etc")
    (source / "shared.pt").symlink_to("/etc/hostname")
    (source / "dead").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    sent, state = look()
    assert sent == ["100/model.pt"]
    assert state["skipped"] == ["dead", "pipe", "scratch", "shared.pt"]
    assert state["failed"] == {}


def test_names_of_node_directories_are_stored_below_node_0(source, look):
    (source / "node-1").mkdir()
    (source / "node-1/x").write_text("of the head")
    (source / "node-results.txt").write_text("text")
    sent, _ = look(below_node_0="(?i)node-[0-9]+(?:/|\\Z)")
    assert sent == ["100/model.pt", "node-0/node-1/x", "node-results.txt"]


def test_small_outputs_are_uploaded_before_large_ones(source, look):
    (source / "first").write_text("x" * 100)
    with (source / "huge").open("wb") as file:
        file.truncate(1 << 20)
    (source / "last").write_text("")
    os.utime(source / "huge", (1, 1))
    sent, _ = look(at_end="yes")
    assert sent == ["last", "100/model.pt", "first", "huge"]


def test_non_utf8_file_name_fails_only_its_own_upload(source, look):
    Path(os.fsdecode(os.fsencode(source) + b"/\xff\xfe")).write_text("x")
    sent, state = look()
    assert sent == ["100/model.pt"]
    assert ["the file name is not UTF-8" in why for why in state["failed"].values()] == [True]


def test_unlistable_subdirectory_is_a_failure_until_listable(source, look, monkeypatch):
    real = os.scandir
    (source / "closed").mkdir()

    def refuse(path="."):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refuse)
        sent, state = look()
        assert state["failed"] == {"closed/": "closed/ cannot be listed: Permission denied"}
        assert look("100/.*")[1]["failed"] == {}
    assert sent == ["100/model.pt"]
    assert look()[1]["failed"] == {}


def test_unlistable_checkpoint_directory_is_reported_as_failure(source, look, monkeypatch):
    def refuse(path="."):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refuse)
        sent, state = look()
    assert sent == []
    assert state["failed"] == {"./": f"{source} cannot be listed: Permission denied"}


def test_opening_a_pipe_or_link_fails_without_blocking(source):
    os.mkfifo(source / "pipe")
    (source / "link").symlink_to("100/model.pt")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=r"no longer a regular file|symbolic links"):
            os.close(s3_upload._regular(str(source / name), os.O_RDONLY))


def test_waiting_for_another_scan_advances_only_while_that_scan_uploads(tmp_path, monkeypatch):
    """Unless it advances, the caller gives up, for example if the file system of the other scan is stalled."""
    state, lock, advanced, pauses = tmp_path / "keep.json", files.lock_file(str(tmp_path / "keep.lock")), [], []
    monkeypatch.setattr(checkpoint_upload, "advance", lambda: advanced.append(len(pauses)))
    monkeypatch.setattr(checkpoint_upload, "_POLLS_PER_READ", 2)

    def pause(_seconds: float) -> None:
        pauses.append(1)
        uploaded = {str(number): {"done": True} for number in range(min(len(pauses), 10) // 3)}
        state.write_text(json.dumps({"files": uploaded, "failed": {"x": f"attempt {len(pauses)}"}}))
        if len(pauses) == 100:
            os.close(lock)

    state.write_text('{"files": {}, "failed": {}}')
    monkeypatch.setattr(checkpoint_upload.time, "sleep", pause)
    with checkpoint_upload._locked_after_scan(str(tmp_path), "keep"), (tmp_path / "keep.lock").open("rb+") as other:
        assert not files.try_lock(other.fileno())
    assert advanced == [0, 4, 6, 10]


def test_uploaded_files_and_parts_advance_the_verb(source, look, monkeypatch):
    advanced = []
    monkeypatch.setattr(checkpoint_upload, "advance", lambda: advanced.append(1))
    (source / "more").write_text("x")
    monkeypatch.setattr(Uploaded, "send", lambda *args: [args[-1]({"parts": {}}) for _ in range(3)])
    look()
    assert len(advanced) == 8
