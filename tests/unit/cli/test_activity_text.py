"""Work that takes a while, as text: amount, running time, limit, rate, remaining time and last answer."""

import pytest

from cloudgpu.cli.terminal.progress_lines import ProgressPrinter, activity_text, elapsed_text
from cloudgpu.run.progress import Activity

MIB = 1 << 20


@pytest.mark.parametrize(
    ("activity", "elapsed_s", "text"),
    [
        (Activity("waiting for SSH", 1, limit_s=600), 0.4, "node 1: waiting for SSH: 0 s of at most 10 min"),
        (
            Activity("waiting for SSH", 0, limit_s=90, last="connection refused"),
            61,
            "node 0: waiting for SSH: 1 min 01 s of at most 1 min 30 s, connection refused",
        ),
        (Activity("copying", done=3, total=20, unit="files"), 7.9, "copying: 3 of 20 files, 7 s"),
        (Activity("copying", done=3, unit="files"), 7, "copying: 3 files, 7 s"),
        (
            Activity("data big", 1, 1024 * MIB, 4096 * MIB, "B"),
            10,
            "node 1: data big: 1.0 GiB of 4.0 GiB, 10 s, 102.4 MiB/s, 30 s left",
        ),
        (Activity("data big", 1, MIB, 4 * MIB, "B"), 1.9, "node 1: data big: 1.0 MiB of 4.0 MiB, 1 s"),
        (Activity("data big", 1, 4 * MIB, 4 * MIB, "B"), 4, "node 1: data big: 4.0 MiB of 4.0 MiB, 4 s, 1.0 MiB/s"),
        (Activity("data big", 1, 4 * MIB, unit="B"), 4, "node 1: data big: 4.0 MiB, 4 s, 1.0 MiB/s"),
        (Activity("data big", 1, 0, 4 * MIB, "B"), 4, "node 1: data big: 0 B of 4.0 MiB, 4 s"),
    ],
)
def test_activity_is_one_line(activity, elapsed_s, text):
    assert activity_text(activity, elapsed_s) == text


@pytest.mark.parametrize(
    ("seconds", "elapsed"),
    [
        (-1, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 00 s"),
        (605, "10 min 05 s"),
        (3600, "1 h 00 min"),
        (7380, "2 h 03 min"),
    ],
)
def test_running_times_are_in_whole_seconds(seconds, elapsed):
    assert elapsed_text(seconds) == elapsed


def test_pipe_shows_an_activity_every_ten_seconds_while_it_lasts():
    now = 0.0
    printer = ProgressPrinter(now=lambda: now)
    shown: list[tuple[float, str]] = []
    for second in range(35):
        now = float(second)
        shown += [(now, str(line)) for line in printer.lines(Activity("waiting", 0, limit_s=60, last=f"{second}"))]
    assert shown == [
        (10, "    node 0: waiting: 10 s of at most 1 min, 10"),
        (20, "    node 0: waiting: 20 s of at most 1 min, 20"),
        (30, "    node 0: waiting: 30 s of at most 1 min, 30"),
    ]
    now = 40.0
    assert printer.lines(Activity("waiting", 0, finished=True)) == []
    assert printer.lines(Activity("waiting", 0)) == []  # the next wait begins anew
