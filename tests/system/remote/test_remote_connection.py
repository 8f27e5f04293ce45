"""Connections and commands against a real OpenSSH server."""

import pytest

from cloudgpu.errors import RemoteCommandError
from cloudgpu.remote.command import Command, Raw, Secret
from cloudgpu.remote.connection import SshHost

pytestmark = pytest.mark.system


def test_a_command_and_its_result(host: SshHost) -> None:
    result = host.run(Command("echo", "a  b", "$HOME;'\"", Secret("s3 cret"), Raw("; echo oops >&2")))
    assert result.stdout == "a  b $HOME;'\" s3 cret\n"
    assert result.stderr == "oops\n"
    assert result.exit_code == 0
    assert "s3 cret" not in result.shown
    assert result.seconds > 0


def test_a_bad_exit_code_shows_the_last_ten_lines(host: SshHost) -> None:
    with pytest.raises(RemoteCommandError) as caught:
        host.run(Command("sh", "-c", "seq 1 20 >&2; exit 3"))
    assert caught.value.tail == tuple(str(n) for n in range(11, 21))
    assert "exit code 3" in caught.value.message
    assert host.try_run(Command("sh", "-c", "exit 3")).exit_code == 3


def test_a_hundred_megabytes_both_ways_do_not_block(host: SshHost) -> None:
    big = bytes(range(256)) * (100 * 4096)
    result = host.run(Command("sh", "-c", "tee /dev/stderr | wc -c"), stdin=big)
    assert result.stdout.strip() == str(len(big))
    flood = host.run(Command("sh", "-c", "head -c 100000000 /dev/zero | tr '\\0' 'x'; head -c 100000000 /dev/zero >&2"))
    assert len(flood.stdout) == 100_000_000


def test_an_end_by_signal_has_the_shell_s_exit_code(host: SshHost) -> None:
    assert host.try_run(Command("sh", "-c", "kill -9 $$")).exit_code == 137
    assert host.try_run(Command(Raw("kill -15 $$"))).exit_code == 143
