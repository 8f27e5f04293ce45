"""Run the plugin's gRPC server on a loopback port until the CLI that started the plugin exits."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc  # type: ignore[import-untyped]
from pulumi.runtime.proto import provider_pb2_grpc

from cloudgpu.engine.plugin.provider import Provider
from cloudgpu.processes import process_start

PARENT_COMMAND_VARIABLE: Final = "CLOUDGPU_PLUGIN_ENDS_WITH"
"""Environment variable containing the `pid:start` of the cloudgpu process that runs the CLI.

The plugin exits when that process exits.
"""

_CALLS_AT_ONCE: Final = 32
_LOOK_EVERY_S: Final = 0.25
_LARGEST_MESSAGE: Final = 400 * 1024 * 1024
"""Maximum gRPC message size in bytes, the same as in Pulumi's own plugins."""


def serve(provider: Provider) -> tuple[grpc.Server, int]:
    """Start the server on a free port of 127.0.0.1; return the server and its port."""
    limits = [("grpc.max_receive_message_length", _LARGEST_MESSAGE), ("grpc.max_send_message_length", _LARGEST_MESSAGE)]
    server = grpc.server(ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="plugin"), options=limits)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def wait_for_parent_exit(parent: int, command: str = "") -> None:
    """Wait until the CLI that started this process, or the cloudgpu process that runs the CLI, has exited.

    Args:
        parent: Process ID of the CLI.
        command: `pid:start` of the cloudgpu process; empty if the user runs the CLI directly.
    """
    pid, _, start = command.partition(":")
    stopped = threading.Event()
    while os.getppid() == parent and (not command or process_start(int(pid)) == start):
        stopped.wait(_LOOK_EVERY_S)
