"""GPUs of a host according to `nvidia-smi`, and its failures as errors of the agent."""

import subprocess
import threading
from pathlib import Path

import pytest

from cloudgpu.node.agent import gpus, subprocess_tool
from cloudgpu.node.agent.untrusted_data import AgentError


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch):
    """Return a function that installs a program as `nvidia-smi`."""

    def install(content: bytes) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_bytes(content)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#!/bin/sh\nexit 9\n", "nvidia-smi: exit code 9"),
        (b"#!/bin/sh\necho no devices >&2\nexit 6\n", "nvidia-smi: no devices"),
        (b"\x7fELF", "nvidia-smi cannot be started: Exec format error"),
    ],
)
def test_failing_nvidia_smi_is_an_agent_error(nvidia_smi, content, message):
    nvidia_smi(content)
    with pytest.raises(AgentError) as caught:
        gpus.gpu_ids()
    assert (caught.value.message, caught.value.code) == (message, "no-gpu")


@pytest.mark.parametrize(("used", "mib"), [("312", 312), ("[N/A]", None)])
def test_memory_of_a_process_is_unknown_only_if_nvidia_smi_does_not_report_it(nvidia_smi, used, mib):
    nvidia_smi(f"#!/bin/sh\necho GPU-a, 1, '{used}'; echo GPU-z, 1, 5\n".encode())
    (process,) = gpus.gpu_processes({"GPU-a": 3})
    assert (process.gpu, process.pid, process.mib) == (3, 1, mib)


def test_nvidia_smi_that_cannot_be_killed_does_not_block_the_agent(nvidia_smi, monkeypatch):
    """The caller holds the lock of the leases meanwhile. Here, the tool only pretends: its kill has no effect."""
    nvidia_smi(b"#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(gpus, "_TOOL_S", 0.1)
    monkeypatch.setattr(subprocess_tool, "_KILL_S", 0.1)
    tools = []

    def kill(tool: subprocess.Popen) -> None:
        tools.append(tool)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", kill)
        with pytest.raises(AgentError, match="nvidia-smi did not respond within"):
            gpus.gpu_ids()
    (tool,) = tools
    assert tool.poll() is None
    tool.kill()
    # The pipe must be closed by now; otherwise, this thread warns about it when it ends, during some later test.
    for thread in threading.enumerate():
        if thread.name == subprocess_tool.REAPER:
            thread.join(timeout=30)
