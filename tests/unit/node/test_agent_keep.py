"""What an upload of checkpoints or outputs leaves out is named, and nothing odd in the folder stops it."""

import json
import os
from pathlib import Path

import pytest

from cloudgpu.node.agent.checkpoints import bucket, upload


class Uploaded:
    """Takes what is sent, from real files."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def send(self, path, relative, state, keep):
        del state, keep
        relative.encode()  # as the address of an object needs it
        with open(path, "rb", opener=bucket._regular) as file:
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
    """One last look: what went up, and the state as `kept` reads it."""

    def go(*patterns: str):
        (tmp_path / "run").mkdir(exist_ok=True)
        spec = {"source": str(source), "bucket": "b", "region": "r", "endpoint": "http://s3", "patterns": patterns}
        path = tmp_path / "run/keep.json"
        path.write_text(json.dumps({"spec": spec, "files": {}, "failed": {}}))
        uploader = upload.Uploader(str(path.parent), "keep")
        uploader._bucket = Uploaded()
        state = uploader.look(whole=True)
        return sorted(uploader._bucket.names), state

    return go


def test_links_inside_are_not_missed_and_what_leads_elsewhere_is_named(source, look):
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


def test_a_name_that_s3_cannot_have_fails_alone(source, look):
    Path(os.fsdecode(os.fsencode(source) + b"/\xff\xfe")).write_text("x")
    sent, state = look()
    assert sent == ["100/model.pt"]
    assert ["the file name is not UTF-8" in why for why in state["failed"].values()] == [True]


def test_a_directory_that_cannot_be_listed_is_a_failure_until_it_can(source, look, monkeypatch):
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


def test_what_is_no_regular_file_any_more_is_never_waited_for(source):
    os.mkfifo(source / "pipe")
    (source / "link").symlink_to("100/model.pt")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=r"no longer a regular file|symbolic links"):
            os.close(bucket._regular(str(source / name), os.O_RDONLY))
