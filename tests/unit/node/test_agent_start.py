import os

from cloudgpu.node.agent.gang.start_stop import _tell


def test_killed_caller_does_not_stop_the_daemon() -> None:
    read, write = os.pipe()
    os.close(read)
    _tell(write, {})
    os.close(write)


def test_daemon_reports_its_start_to_the_caller() -> None:
    read, write = os.pipe()
    _tell(write, {"error": "x"})
    assert os.read(read, 100) == b'{"error": "x"}'
    os.close(read)
    os.close(write)
