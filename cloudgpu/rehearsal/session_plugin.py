"""Replacement for AWS's session-manager-plugin on the rehearsal cloud, with the same command-line interface.

This file, whose path is `PLUGIN`, is run as a program and uses only the standard library. The program connects to the
stream URL in the rehearsal cloud's response to `StartSession`, sends the session's token, and then forwards standard
input and output. It rejects stream URLs on other machines, because it must send the token only to the cloud that issued
it.
"""

import json
import os
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

PLUGIN = Path(__file__)
_CHUNK_BYTES = 1 << 16
_USAGE = 2


def main(arguments: list[str], environ: dict[str, str]) -> int:
    """Forward one session. Return the exit status: 0, or 2 if the session is rejected."""
    variable, _region, operation, _profile, request, _endpoint = arguments
    parameters, response = json.loads(request), json.loads(environ[variable])
    stream = urlsplit(response["StreamUrl"])
    if operation != "StartSession" or parameters.get("DocumentName") != "AWS-StartSSHSession":
        sys.stderr.write(f"the rehearsal cloud does not simulate {operation} with {parameters.get('DocumentName')}\n")
        return _USAGE
    if stream.hostname != "127.0.0.1" or stream.port is None:
        sys.stderr.write(f"the stream URL of a rehearsal cloud must be on 127.0.0.1: {response['StreamUrl']}\n")
        return _USAGE
    peer = socket.create_connection((stream.hostname, stream.port), timeout=10)
    peer.settimeout(None)
    peer.sendall(response["TokenValue"].encode() + b"\n")
    threading.Thread(target=_forward_stdin, args=(peer,), daemon=True).start()
    while piece := peer.recv(_CHUNK_BYTES):
        _write(piece)
    return 0


def _forward_stdin(peer: socket.socket) -> None:
    while piece := os.read(0, _CHUNK_BYTES):
        peer.sendall(piece)
    peer.shutdown(socket.SHUT_WR)


def _write(piece: bytes) -> None:
    while piece:
        piece = piece[os.write(1, piece) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], dict(os.environ)))
