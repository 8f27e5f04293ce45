"""What differs in a first recipe by its launcher: those that need nothing but Python, so that it runs as it stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from cloudgpu.app.planning.recipe_scaffold_text import SCRIPT

LauncherChoice = Literal["torchrun", "each-node", "head-only", "service"]

_PARAMS: Final = """\
params:  # change one for one run: cloudgpu train $name --set steps=100
  steps: 20

"""
_MEASURED: Final = """\
metrics:  # read from what the ranks print
  steps_per_s:
    pattern: 'steps_per_s=(?P<value>[0-9.]+)'
    unit: steps/s
    better: higher

outputs: [outputs/]  # brought back when the run has ended

"""
_TORCHRUN: Final = """\
launch:
  with: torchrun  # every rank finds RANK, WORLD_SIZE, MASTER_ADDR ... around it
  ranks_per_node: gpus  # one process a GPU
  command: train.py --steps {steps}

"""
_EACH_NODE: Final = """\
launch:
  with: each-node  # the command once on every node; CLOUDGPU_RANK and CLOUDGPU_WORLD_SIZE number them
  command: train.py --steps {steps}

"""
_HEAD_ONLY: Final = """\
launch:
  with: head-only  # the command on the first node alone; CLOUDGPU_NODE_IPS has the addresses of all
  command: train.py --steps {steps}

"""
_SERVICE: Final = """\
launch:
  with: service  # a server on the first node, opened here by a tunnel; `cloudgpu cancel` or the expiry ends it
  command: serve.py --address {service.address} --port {service.port}
  service:
    port: 8000

"""
_REHEARSED: Final = """
rehearsal:  # what differs with --on rehearsal, where nothing is charged
  ranks_per_node: 1
"""
_SERVER: Final = '''\
"""Your server goes here. As it stands it says on which node it runs."""

import argparse
import http.server
import socket

parser = argparse.ArgumentParser()
parser.add_argument("--address", default="127.0.0.1")
parser.add_argument("--port", type=int, default=8000)
options = parser.parse_args()


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = f"served by {socket.gethostname()}\\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


server = http.server.ThreadingHTTPServer((options.address, options.port), Page)
print(f"serving on port {options.port}", flush=True)
server.serve_forever()
'''
_ANY_LAUNCHER: Final = SCRIPT.replace('"RANK"', '"CLOUDGPU_RANK"').replace('"WORLD_SIZE"', '"CLOUDGPU_WORLD_SIZE"')


@dataclass(frozen=True)
class LauncherText:
    """The parts of a first recipe that its launcher decides, and its script."""

    description: str
    run: str
    script_name: str
    script: str
    rehearsal: str = ""


_RANKS: Final = "Says where each rank runs, and measures a little."
TEXTS: Final[Mapping[LauncherChoice, LauncherText]] = {
    "torchrun": LauncherText(_RANKS, _PARAMS + _TORCHRUN + _MEASURED, "train.py", SCRIPT, _REHEARSED),
    "each-node": LauncherText(_RANKS, _PARAMS + _EACH_NODE + _MEASURED, "train.py", _ANY_LAUNCHER),
    "head-only": LauncherText(_RANKS, _PARAMS + _HEAD_ONLY + _MEASURED, "train.py", _ANY_LAUNCHER),
    "service": LauncherText("Serves a page that says where it runs.", _SERVICE, "serve.py", _SERVER),
}
