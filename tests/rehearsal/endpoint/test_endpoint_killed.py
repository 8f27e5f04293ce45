"""SIGKILL during a stream of writes: acknowledged writes survive, and no other write is partly applied."""

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ConnectionError, HTTPClientError

from cloudgpu.rehearsal.aws_api import store
from tests.rehearsal.endpoint.writers import ABSENT, WRITERS, Clients, Key, Writer, observed, settle

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(600)]


def let_them_write(writers: list[Writer], calls: int) -> None:
    """Wait for a number of calls rather than a time, so that a slow machine does not make the test easier."""
    deadline = time.monotonic() + 60
    while sum(writer.acknowledged.total() for writer in writers) < calls:
        assert time.monotonic() < deadline
        assert all(writer.errors == [] for writer in writers), [writer.errors for writer in writers]
        time.sleep(0.002)


@pytest.mark.parametrize("kills", [6, pytest.param(80, marks=pytest.mark.full)])
def test_acknowledged_writes_survive_kills_and_no_write_is_partial(server_process, kills, record_property):
    dice = random.Random(kills)
    server_process.start()
    aws = Clients(server_process)
    expected: list[dict[Key, Any]] = [{} for _ in range(WRITERS)]
    acknowledged: Counter[str] = Counter()
    came_through, doubtful = 0, 0
    for number in range(kills):
        writers = [Writer(at, aws, 1000 * kills + number, expected[at]) for at in range(WRITERS)]
        for writer in writers:
            writer.start()
        let_them_write(writers, dice.randint(4, 16))
        time.sleep(dice.uniform(0, 0.1))
        server_process.end(signal.SIGKILL)
        for writer in writers:
            writer.join(60)
            assert writer.errors == [], writer.errors
            acknowledged += writer.acknowledged
        server_process.start()
        settle(server_process)
        found = observed(aws)
        for writer in writers:
            for key, after in writer.uncertain.items():
                doubtful += 1
                before = writer.expected.get(key, ABSENT)
                now = found.get(key, ABSENT)
                assert now in (before, after), f"kill {number}: {key} is {now}, was {before}, to be {after}"
                came_through += now == after
                writer.expected[key] = now
        wanted = {key: value for one in expected for key, value in one.items() if value != ABSENT}
        assert found == wanted, f"kill {number}"
    record_property("acknowledged", dict(acknowledged))
    print(f"{kills} kills, {acknowledged.total()} acknowledged writes, {doubtful} without an answer, "
          f"{came_through} of those carried out: {dict(acknowledged)}")  # fmt: skip
    assert acknowledged.total() > 3 * kills
    assert len(acknowledged) > 6


def test_call_that_changes_two_services_is_applied_atomically(server_process):
    """A mount target also creates an EC2 interface; kill the server before each write of the call and after all."""
    left = multiprocessing.get_context("fork").Value("i", -1)

    def die_at_a_write():
        really = store.write_durably

        def counted(path, content):
            left.value -= 1
            if left.value == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            really(path, content)

        store.write_durably = counted

    outcomes = []
    server_process.start()
    aws = Clients(server_process)
    server_process.end()
    for number in range(1, 6):
        server_process.start(prepare=die_at_a_write)
        made = aws.efs.create_file_system(CreationToken=f"f{number}")["FileSystemId"]
        left.value = number
        try:
            aws.efs.create_mount_target(FileSystemId=made, SubnetId=aws.subnet)
            answered = True
        except (ConnectionError, HTTPClientError):
            answered = False
        left.value = -1
        server_process.end(signal.SIGKILL)
        server_process.start()
        found = observed(aws)
        files = found["files", f"f{number}"]
        assert (files["targets"], files["interfaces"]) in ((0, 0), (1, 1)), f"killed at write {number}"
        assert not [key for key in found if key[0] == "interface"], f"killed at write {number}"
        assert files["targets"] or not answered
        outcomes.append((answered, files["targets"]))
        server_process.end()
    assert outcomes[0] == (False, 0)
    assert (False, 1) in outcomes, "it was never killed after its commit"
    assert outcomes[-1] == (True, 1)
