"""A run's secrets: on tmpfs while it runs, masked in its output, overwritten in its logs at the end."""

import json
import os
import secrets
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from cloudgpu.node.agent.masking import path_of

pytestmark = [pytest.mark.main_path, pytest.mark.system]


def followed(stream: subprocess.Popen) -> str:
    """Return the next output that `follow` delivers."""
    return json.loads(stream.stdout.readline())["data"]


@pytest.fixture(name="gang")
def _gang(make_gang):
    gang = make_gang(1)
    yield gang
    path_of_run(gang).unlink(missing_ok=True)


def path_of_run(gang) -> Path:
    return Path(path_of(str(gang.dir(0))))


TALK = 'echo "token ${TOKEN}, both ${KEY}"; until [ -e go ]; do sleep 0.05; done; echo "again $TOKEN"'


def test_output_is_masked_during_the_run_and_in_the_log_after_it(gang) -> None:
    token = f"hf_{secrets.token_hex(16)}"
    gang.start(TALK, secrets={"TOKEN": token, "KEY": f"line one {token}\nline two {token}"})
    stream = gang.popen("follow", {"run_dir": str(gang.dir(0))})
    stars = "*" * len(token)
    assert (
        followed(stream) == f"token {stars}, both {'*' * len(f'line one {token}')}\n{'*' * len(f'line two {token}')}\n"
    )
    info = path_of_run(gang).stat()
    assert (info.st_uid, stat.S_IMODE(info.st_mode)) == (os.geteuid(), 0o600)
    (gang.workdir / "go").touch()
    assert gang.wait()["state"] == "succeeded"
    assert followed(stream) == f"again {stars}\n"
    stream.communicate(timeout=10)
    assert not path_of_run(gang).exists()
    assert token not in gang.log(0, 0)
    assert gang.log(0, 0).endswith(f"\nagain {stars}\n")


def test_secrets_are_removed_if_the_agent_is_killed(gang) -> None:
    token = f"hf_{secrets.token_hex(16)}"
    gang.start("echo $TOKEN; sleep 300", secrets={"TOKEN": token})
    gang.until(lambda: gang.log(0, 0), bool, 10)
    gang.kill(gang.status()["agent"]["pid"], signal.SIGKILL)
    gang.until(path_of_run(gang).exists, lambda there: not there, 10)
    assert gang.log(0, 0) == "*" * len(token) + "\n"


def test_a_run_without_secrets_writes_no_file(gang) -> None:
    gang.start("sleep 300")
    gang.wait(state={"running"})
    assert not path_of_run(gang).exists()
    gang.call("stop", {"run_dir": str(gang.dir(0)), "grace_s": 1})
    gang.wait()
