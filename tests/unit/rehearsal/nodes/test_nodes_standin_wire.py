"""A stub command and the node host exchange complete requests and replies over a real socket."""

import asyncio
import socket
import sys
from contextlib import asynccontextmanager

import pytest

from cloudgpu.rehearsal.nodes.servers import standin
from cloudgpu.rehearsal.nodes.servers.command_answers import Reply, StandInServer

REPLY = Reply(stdout="gr\u00fc\u00dfe\n\n", stderr="zweite\nZeile", exit_code=7)


@asynccontextmanager
async def serving(folder, reply=REPLY):
    heard, sent = [], []

    async def asked(program, arguments, units):
        heard.append((program, arguments, units))
        return reply

    server = StandInServer(asked, sent.append)
    await server.listen(folder)
    yield heard, sent
    server.close()


async def run(folder, *words, root):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", standin.__file__, *words),
        env={"CLOUDGPU_NODE_RUN": str(folder), "CLOUDGPU_NODE_ROOT": str(root)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(
    "words", [["nvidia-smi"], ["apt-get", "install", "", "a b", "\u00fc\n-y"], ["shutdown", "-h", "1"]]
)
def test_stub_command_arguments_reach_the_host_unchanged(tmp_path, words):
    async def story():
        async with serving(tmp_path) as (heard, sent):
            assert await run(tmp_path, *words, root=tmp_path) == (7, REPLY.stdout, REPLY.stderr)
            return heard, sent

    heard, sent = asyncio.run(story())
    assert heard == [(words[0], words[1:], {})]
    assert sent == [REPLY]


def test_unit_files_are_sent_with_their_timer(tmp_path):
    folder = tmp_path / "etc" / "systemd" / "system"
    folder.mkdir(parents=True)
    (folder / "end.timer").write_text("[Timer]\nOnCalendar=x\n")
    (folder / "end.service").write_text("[Service]\nExecStart=/sbin/poweroff\0\n")

    async def story():
        async with serving(tmp_path) as (heard, _):
            await run(tmp_path, "systemctl", "start", "end.timer", root=tmp_path)
            return heard

    units = {"end.timer": "[Timer]\nOnCalendar=x\n", "end.service": "[Service]\nExecStart=/sbin/poweroff\n"}
    assert asyncio.run(story()) == [("systemctl", ["start", "end.timer"], units)]


@pytest.mark.parametrize("rubbish", [b"", b"x", b"x\0y", b"x\0" + b"1\0a\0odd", b"x" * 600_000, b"{}\n"])
def test_malformed_request_is_ignored_and_the_next_is_answered(tmp_path, rubbish):
    def send():
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(tmp_path / "node.sock"))
            try:
                peer.sendall(rubbish)
                peer.shutdown(socket.SHUT_WR)
                return peer.recv(100)
            except (BrokenPipeError, ConnectionResetError):
                return b""

    async def story():
        async with serving(tmp_path) as (heard, _):
            assert await asyncio.to_thread(send) == b""
            assert heard == []
            return await run(tmp_path, "reboot", root=tmp_path)

    assert asyncio.run(story())[0] == 7


def test_stub_command_imports_no_slow_modules():
    program = f"import sys; exec(open({standin.__file__!r}).read(), {{'__name__': 'x'}}); print(*sys.modules)"

    async def story():
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", program), stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0].decode().split()

    loaded = asyncio.run(story())
    assert "_socket" in loaded
    assert not {"json", "re", "pathlib", "socket", "enum", "selectors"} & set(loaded)
