import os

from cloudgpu.node.agent.gang.start import _tell


def test_a_caller_who_was_killed_does_not_end_the_daemon() -> None:
    read, write = os.pipe()
    os.close(read)
    _tell(write, {})
    os.close(write)


def test_the_caller_is_told() -> None:
    read, write = os.pipe()
    _tell(write, {"error": "x"})
    assert os.read(read, 100) == b'{"error": "x"}'
    os.close(read)
    os.close(write)
