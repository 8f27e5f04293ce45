"""The plugin process: serves on a loopback port, prints the port, and exits with the CLI that started it."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc  # type: ignore[import-untyped]
from pulumi.runtime.proto import provider_pb2_grpc

from cloudgpu.engine.plugin.provider import Provider
from cloudgpu.engine.processes import process_start

ENDS_WITH: Final = "CLOUDGPU_PLUGIN_ENDS_WITH"
"""The variable that names the command which the plugin serves, as `pid:start`: killed, it must make nothing more."""

_CALLS_AT_ONCE: Final = 32
_LOOK_EVERY_S: Final = 0.25
_LARGEST_MESSAGE: Final = 400 * 1024 * 1024
"""Bytes; what Pulumi's own plugins take."""


def serve(provider: Provider) -> tuple[grpc.Server, int]:
    """Start serving; the port is free for one connection of the CLI.

    Raises:
        RuntimeError: No port of 127.0.0.1 can be had.
    """
    limits = [("grpc.max_receive_message_length", _LARGEST_MESSAGE), ("grpc.max_send_message_length", _LARGEST_MESSAGE)]
    server = grpc.server(ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="plugin"), options=limits)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def until_orphaned(parent: int, command: str = "") -> None:
    """Return when the CLI that started this process, or the command behind it, has exited.

    Args:
        parent: Process ID of the CLI.
        command: `pid:start` of the command; empty if a user runs the CLI.
    """
    pid, _, start = command.partition(":")
    stopped = threading.Event()
    while os.getppid() == parent and (not command or process_start(int(pid)) == start):
        stopped.wait(_LOOK_EVERY_S)
