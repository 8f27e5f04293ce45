"""The file with a run's secrets: who may read it, where it may be, and what happens to the logs."""

from pathlib import Path

import pytest

from cloudgpu.node.agent import masking
from cloudgpu.node.agent.gang import logs
from cloudgpu.node.agent.untrusted_data import AgentError

SECRETS = {"TOKEN": "hf_s3cr3t"}


@pytest.fixture(name="shm", autouse=True)
def _shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(masking, "FOLDER", str(folder))
    monkeypatch.setattr(masking, "_is_in_memory", lambda _folder: True)
    return folder


def test_secrets_are_readable_by_their_user_only_and_removed(shm: Path) -> None:
    masking.write("/run", SECRETS)
    (path,) = shm.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert masking.read_mask("/run")(b"hf_s3cr3t") == b"*********"
    assert masking.read_mask("/other")(b"hf_s3cr3t") == b"hf_s3cr3t"
    masking.finish("/run", ())
    assert not list(shm.iterdir())


def test_a_folder_on_a_disk_is_refused(monkeypatch: pytest.MonkeyPatch, shm: Path) -> None:
    monkeypatch.undo()
    assert masking._is_in_memory("/dev/shm")
    assert not masking._is_in_memory("/proc")
    monkeypatch.setattr(masking, "FOLDER", "/proc")
    with pytest.raises(AgentError, match="/proc is not on tmpfs, so the secrets would be written to a disk"):
        masking.write("/run", SECRETS)
    masking.write("/run", {})


def test_a_link_that_another_user_put_there_is_not_followed(shm: Path, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    bait.write_text('{"X": "word"}')
    Path(masking.path_of("/run")).symlink_to(bait)
    assert masking.read_mask("/run")(b"word") == b"word"
    masking.write("/run", SECRETS)
    assert bait.read_text() == '{"X": "word"}'


@pytest.mark.parametrize("content", ["", "[]", "{", '{"TOKEN": 5}', "\0\0"])
def test_a_damaged_file_masks_nothing_that_it_does_not_name(content: str) -> None:
    masking.write("/run", SECRETS)
    Path(masking.path_of("/run")).write_text(content)
    assert masking.read_mask("/run")(b"hf_s3cr3t") == b"hf_s3cr3t"


def test_logs_are_overwritten_across_the_pieces_in_which_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "_PIECE_BYTES", 16)
    masking.write("/run", SECRETS)
    text = "".join(f"{' ' * count}hf_s3cr3t\n" for count in range(17))
    log = tmp_path / "rank-0.log"
    log.write_text(text)
    masking.finish("/run", [str(log), str(tmp_path / "missing.log")])
    assert log.read_text() == text.replace("hf_s3cr3t", "*********")


def test_secrets_stay_until_the_logs_are_overwritten(tmp_path: Path) -> None:
    masking.write("/run", SECRETS)
    masking.finish("/run", [str(tmp_path)])  # a directory cannot be opened for writing
    assert masking.read_mask("/run").reach


def test_output_is_masked_across_the_messages_in_which_it_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_BATCH_BYTES", 16)
    masking.write("/run", SECRETS)
    log = tmp_path / "rank-0.log"
    text = "".join(f"{' ' * count}hf_s3cr3t" for count in range(17))
    log.write_text(text)
    reader = logs.LogReader(str(log), 0, 0, masking.read_mask("/run"))
    shown = ""
    while (message := reader.next(whole=False)) is not None:
        assert message["offset"] == len(shown)
        shown += message["data"]
    assert shown == text.replace("hf_s3cr3t", "*********")
