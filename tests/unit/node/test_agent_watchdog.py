"""The watchdog process: what it does if the agent dies, closes it or dismisses it."""

import os
import signal
from pathlib import Path

import pytest

from cloudgpu.node.agent import files
from cloudgpu.node.agent.containers import run_container
from cloudgpu.node.agent.containers.run_container import ContainerSpec, RankContainer
from cloudgpu.node.agent.proc import WatchdogProcess
from cloudgpu.node.agent.untrusted_data import AgentError


@pytest.fixture(name="lock")
def _lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture(name="start")
def _start(tmp_path: Path, lock: Path):
    """Return a function that starts a watchdog, which keeps a lock and writes its messages to a file."""

    def start() -> WatchdogProcess:
        handle = files.lock_file(str(lock))
        clean_up = lambda messages: (tmp_path / "messages").write_bytes(b",".join(messages))  # noqa: E731
        watchdog = WatchdogProcess(clean_up, open_handles=(handle,))
        os.close(handle)
        return watchdog

    return start


def cleaned_up(lock: Path) -> bytes | None:
    """Wait for the end of the watchdog. Return the messages that it cleaned up with; None if it did not clean up."""
    with files.locked(str(lock)):
        path = lock.parent / "messages"
        return path.read_bytes() if path.exists() else None


def test_dismissed_watchdog_has_ended_and_released_its_lock(start, lock: Path) -> None:
    watchdog = start()
    watchdog.send(b"1")
    watchdog.dismiss()
    handle = os.open(lock, os.O_RDWR)
    assert files.try_lock(handle)
    os.close(handle)
    assert (watchdog.last, cleaned_up(lock)) == (b"1", None)
    with pytest.raises(ChildProcessError):
        os.waitpid(watchdog._pid, 0)


def test_closed_watchdog_cleans_up_with_all_messages(start, lock: Path) -> None:
    watchdog = start()
    for message in (b"1", b"hold"):
        watchdog.send(message)
    watchdog.close()
    assert cleaned_up(lock) == b"1,hold"
    os.waitpid(watchdog._pid, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_watchdog_survives_the_signals_that_end_a_login(start, lock: Path, number: signal.Signals) -> None:
    ready, inherited = os.pipe()
    os.set_inheritable(inherited, True)
    watchdog = start()
    os.close(inherited)
    os.read(ready, 1)  # the watchdog closes what it inherited once it ignores signals
    os.close(ready)
    os.kill(watchdog._pid, number)
    watchdog.close()
    _, status = os.waitpid(watchdog._pid, 0)
    assert (status, cleaned_up(lock)) == (0, b"")


def test_watchdog_cleans_up_if_its_process_is_killed(start, lock: Path) -> None:
    ready, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            start().send(b"pending")
            os.write(write, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.read(ready, 1)
    for handle in (ready, write):
        os.close(handle)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert cleaned_up(lock) == b"pending"


def test_killed_watchdog_is_no_error(start, lock: Path) -> None:
    watchdog = start()
    os.kill(watchdog._pid, signal.SIGKILL)
    os.waitpid(watchdog._pid, 0)
    watchdog.send(b"1")
    watchdog.dismiss()
    assert cleaned_up(lock) is None


CLIENT = """#!/bin/sh
echo "$@" >>{calls}
exit {exit_code}
"""


@pytest.mark.parametrize(
    ("exit_code", "pending", "attempts"),
    [(0, True, 3), (0, False, 1), (1, False, 3)],
    ids=["engine may be creating it", "removed", "not removed"],
)
def test_removal_is_repeated_until_nothing_can_remain(
    tmp_path: Path, monkeypatch, exit_code: int, pending: bool, attempts: int
) -> None:
    monkeypatch.setattr(run_container, "_LAST_TRIES_S", (0.0,) * 3)
    client, calls = tmp_path / "docker", tmp_path / "calls"
    client.write_text(CLIENT.format(calls=calls, exit_code=exit_code))
    client.chmod(0o700)
    images: list[str] = []

    def remove_image() -> None:
        images.append("removed")
        raise AgentError("the engine does not respond")

    container = RankContainer(ContainerSpec("name", "image", (str(client),), ("run",)))
    container.remove_with_retries(remove_image, pending=pending)
    assert calls.read_text().splitlines() == ["rm --force --volumes name"] * attempts
    assert len(images) == attempts
