"""Run commands as a node's superuser, with output to the node's console."""

import asyncio
import os
from collections.abc import Mapping, Sequence

from cloudgpu.rehearsal.nodes.boot.console import Console
from cloudgpu.rehearsal.nodes.processes import NodeRuntime


async def run(
    body: NodeRuntime, console: Console, argv: Sequence[str], environment: Mapping[str, str], stdin: bytes | None = None
) -> int:
    """Run one command and return its exit status. If `stdin` is None, standard input is empty."""
    output = console.open()
    try:
        process = await asyncio.create_subprocess_exec(
            *body.command(list(argv), cwd="/", terminal=False),
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=output, stderr=output, env=dict(environment), start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(output)
    await process.communicate(stdin)
    return process.returncode or 0
