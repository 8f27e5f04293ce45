"""Commands without usable AWS credentials fail with their documented exit code, the cause and the next step."""

import sys
from pathlib import Path

import pytest

from cloudgpu.cli.main import main

FAILING = f"credential_process = {sys.executable} -c \"raise SystemExit('session ended: run corp-login')\""
CONFIG = f"[profile ended]\n{FAILING}\n[profile gpu]\nregion = eu-west-1\n"
COMMANDS = {
    "plan quickstart": 8,
    "up quickstart --yes": 8,
    "train quickstart --yes": 8,
    "down demo --yes": 6,
    "sweep": 8,
    "quota": 8,
    "storage list": 8,
    "image list": 8,
    "doctor": 15,
}


@pytest.fixture(autouse=True)
def user_of_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "aws-config"
    config.write_text(CONFIG)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("CLOUDGPU_TARGET", "aws")
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize(
    ("profile", "cause"),
    [("nobody", "profile nobody does not exist (AWS_PROFILE names it)"), ("ended", "session ended: run corp-login")],
)
def test_command_fails_with_its_exit_code_and_the_cause(
    line: str, profile: str, cause: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_PROFILE", profile)
    assert main(line.split()) == COMMANDS[line]
    shown = capsys.readouterr()
    text = " ".join((shown.out + shown.err).split())
    assert cause in text
    assert "Traceback" not in text
    assert ("ended, gpu" if profile == "nobody" else "credential_process") in text


def test_commands_that_need_no_account_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert main(["status"]) == 0
    assert main(["plan", "quickstart", "--offline", "--on", "rehearsal"]) == 0
