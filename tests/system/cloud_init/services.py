"""Services for the machine: the rehearsal's metadata service at 169.254.169.254, and a system log.

usage: services.py SPEC DEVICES   (in the network namespace of the machine; DEVICES is its /dev)
"""

import asyncio
import base64
import json
import os
import socket
import sys
import time
from pathlib import Path

from cloudgpu.rehearsal.nodes.servers.metadata import MetadataService
from cloudgpu.rehearsal.nodes.values import NodeSpec


def open_log(devices: Path) -> socket.socket:
    """Return the socket at /dev/log, without which `logger` prints nothing to the console either."""
    os.chdir(devices)  # the path of a socket is short; that of the machine's root may not be
    log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    log.bind("log")
    log.setblocking(False)
    return log


async def main() -> None:
    fields = json.loads(Path(sys.argv[1]).read_text())
    user_data = base64.b64decode(fields.pop("user_data"))
    keys = tuple(fields.pop("authorized_keys"))
    spec = NodeSpec(**fields, user_data=user_data, authorized_keys=keys)
    log = open_log(Path(sys.argv[2]))
    asyncio.get_running_loop().add_reader(log, lambda: log.recv(1 << 16))
    service = MetadataService(spec, fields["address"], 80, now_s=time.time, credentials=lambda: None)
    await service.listen(socket.create_server(("169.254.169.254", 80)))
    await asyncio.Event().wait()


asyncio.run(main())
