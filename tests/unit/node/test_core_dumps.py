"""Processes that hold secrets leave no core dumps. The programs that they start, such as ranks, may do so."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this attribute of a process")

SHOW = """
import ctypes, resource
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE) == HERE)
"""
RUN = """
import resource, subprocess, sys
sys.argv = ARGV
from MODULE import entry
before = resource.getrlimit(resource.RLIMIT_CORE)
try:
    entry()
except SystemExit:
    pass
code = CODE.replace("HERE", repr(before))
exec(code)
sys.stdout.flush()
subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.mark.parametrize(
    ("module", "argv"),
    [("cloudgpu.cli.main", ["cloudgpu", "--version"]), ("cloudgpu.node.agent.main", ["agent", "no-such-verb"])],
)
def test_only_the_process_itself_may_not_dump_core(module: str, argv: list[str]) -> None:
    program = RUN.replace("ARGV", repr(argv)).replace("MODULE", module).replace("CODE", repr(SHOW))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["0 True", "1 True"]
