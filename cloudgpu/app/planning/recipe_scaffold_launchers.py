"""The parts of a new recipe that depend on its launcher.

Only launchers that require nothing but Python on the nodes are included, so that the script runs without changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from cloudgpu.app.planning.recipe_scaffold_text import SCRIPT

LauncherChoice = Literal["torchrun", "each-node", "head-only", "service", "script"]

_PARAMS: Final = """\
params:  # override one for a single run: cloudgpu train $name --set steps=100
  steps: 20

"""
_MEASURED: Final = """\
metrics:  # parsed from the output of the ranks
  steps_per_s:
    pattern: 'steps_per_s=(?P<value>[0-9.]+)'
    unit: steps/s
    better: higher

outputs: [outputs/]  # downloaded when the run ends

"""
_TORCHRUN: Final = """\
launch:
  with: torchrun  # every rank gets RANK, WORLD_SIZE, MASTER_ADDR ... in its environment
  ranks_per_node: gpus  # one process per GPU
  command: train.py --steps {steps}

"""
_EACH_NODE: Final = """\
launch:
  with: each-node  # run the command once on every node, with CLOUDGPU_RANK and CLOUDGPU_WORLD_SIZE set
  command: train.py --steps {steps}

"""
_HEAD_ONLY: Final = """\
launch:
  with: head-only  # run the command on the first node only; CLOUDGPU_NODE_IPS lists all addresses
  command: train.py --steps {steps}

"""
_SERVICE: Final = """\
launch:
  with: service  # a server on the first node, tunneled to this machine; runs until `cloudgpu cancel` or expiry
  command: serve.py --address {service.address} --port {service.port}
  service:
    port: 8000

"""
_SCRIPT: Final = """\
setup: |  # runs once on every node, for example to install packages; again only if it or a file it names changes
  python --version > python-version.txt

launch:
  with: each-node  # run the script once on every node, with CLOUDGPU_RANK and CLOUDGPU_WORLD_SIZE set
  run: |  # bash; stops at the first command that fails; a parameter is a variable: CLOUDGPU_PARAM_STEPS
    cat python-version.txt
    python train.py --steps "$$CLOUDGPU_PARAM_STEPS"
    ls "$$CLOUDGPU_OUTPUTS"

"""
_REHEARSED: Final = """
rehearsal:  # overrides for --on rehearsal, where nothing is charged
  ranks_per_node: 1
"""
_SERVER: Final = '''\
"""Your server goes here. This placeholder serves the name of the node that it runs on."""

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
    """The parts of a new recipe that depend on the launcher, and its script."""

    description: str
    run: str
    script_name: str
    script: str
    rehearsal: str = ""


_RANKS: Final = "Prints where each rank runs and measures steps per second."
TEXTS: Final[Mapping[LauncherChoice, LauncherText]] = {
    "torchrun": LauncherText(_RANKS, _PARAMS + _TORCHRUN + _MEASURED, "train.py", SCRIPT, _REHEARSED),
    "each-node": LauncherText(_RANKS, _PARAMS + _EACH_NODE + _MEASURED, "train.py", _ANY_LAUNCHER),
    "head-only": LauncherText(_RANKS, _PARAMS + _HEAD_ONLY + _MEASURED, "train.py", _ANY_LAUNCHER),
    "script": LauncherText(_RANKS, _PARAMS + _SCRIPT + _MEASURED, "train.py", _ANY_LAUNCHER),
    "service": LauncherText("Serves a page that shows the node's name.", _SERVICE, "serve.py", _SERVER),
}
