"""The head of a run can log in to the other nodes only while the run is active."""

import json
import signal
from pathlib import Path

import pytest

MINE = "ssh-ed25519 AAAAmine me@laptop\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home/.ssh"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "authorized_keys").write_text(MINE)
    monkeypatch.setenv("HOME", str(folder.parent))
    return folder / "authorized_keys"


def started(make_gang, script: str):
    gang = make_gang(1)
    line = f'restrict,from="10.0.0.0/24" ssh-ed25519 AAAArun cloudgpu-run:{gang.run_id}'
    spec = gang.spec(0, [script], admits=line)
    key = gang.dir(0) / "ssh/id_ed25519"
    key.parent.mkdir(parents=True)
    key.write_text("a private key")
    gang.call("start", spec)
    return gang, line, key


def test_run_key_is_authorized_only_during_run(make_gang, home: Path) -> None:
    gang, line, key = started(make_gang, "cp ~/.ssh/authorized_keys seen")
    assert gang.wait()["state"] == "succeeded"
    assert (gang.workdir / "seen").read_text() == f"{MINE}{line}\n"
    assert home.read_text() == MINE
    assert home.stat().st_mode & 0o777 == 0o600
    assert not key.exists()


def test_run_key_is_removed_after_agent_is_killed(make_gang, home: Path) -> None:
    gang, line, key = started(make_gang, "sleep 600")
    gang.wait(state={"running"})
    assert line in home.read_text()
    gang.kill(json.loads((gang.dir(0) / "status.json").read_text())["agent"]["pid"], signal.SIGKILL)
    gang.until(home.read_text, lambda text: text == MINE, 20)
    gang.until(key.exists, lambda there: not there, 20)


def test_authorized_key_line_without_run_marker_is_rejected(make_gang, home: Path) -> None:
    gang = make_gang(1)
    for line in ("ssh-ed25519 AAAArun me", f"ssh-ed25519 AAAAother x\nssh-ed25519 AAAArun cloudgpu-run:{gang.run_id}"):
        answer = gang.call("start", gang.spec(0, ["true"], admits=line), ok=False)
        assert "admits" in answer["error"]
    assert home.read_text() == MINE
