"""Entry point of `pulumi-resource-aws`: `python -m cloudgpu.engine.plugin --notes DIR ...`."""

import argparse
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from cloudgpu.aws.resources import registry
from cloudgpu.aws.service_model import install_request_checks
from cloudgpu.aws.session.session import Clients, connect
from cloudgpu.clock import SystemClock
from cloudgpu.engine.plugin.provider import (
    PARENT_COMMAND_VARIABLE,
    Provider,
    loopback_endpoint,
    serve,
    wait_for_parent_exit,
)
from cloudgpu.engine.plugin.tokens import Tokens
from cloudgpu.errors import CloudGpuError


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serve until the CLI exits. The first line on standard output is the port, as Pulumi's protocol requires."""
    parent = os.getppid()
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--notes", type=Path, required=True)
    # ignore unknown arguments: the CLI adds its logging options and the address of its server
    options, _ = parser.parse_known_args(list(arguments))
    provider = Provider(
        version=version("pulumi-aws"),
        handlers=registry,
        clients_for=clients_factory(environ),
        environ=environ,
        tokens=Tokens(options.notes),
        clock=SystemClock(),
    )
    server, port = serve(provider)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    wait_for_parent_exit(parent, environ.get(PARENT_COMMAND_VARIABLE, ""))
    server.stop(grace=None)
    # Do not wait for calls in progress: a later search by token or tag finds the resources that they create.
    os._exit(0)


def clients_factory(environ: Mapping[str, str]) -> Callable[[str], Clients]:
    """Return a function that connects to the rehearsal cloud in a region and reuses one connection per region."""
    install_request_checks()
    built: dict[str, Clients] = {}
    lock = threading.Lock()

    def clients_for(region: str) -> Clients:
        with lock:
            if region not in built:
                built[region] = connect(loopback_endpoint(environ), region)
            return built[region]

    return clients_for


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], os.environ))
    except CloudGpuError as err:
        sys.exit(err.message)
