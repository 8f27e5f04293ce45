#!/usr/bin/env python3
"""Simulated `nvidia-smi` that supports the queries of cloudgpu and its tools.

Reads /run/host/gpus.json: {"model": "Tesla V100-SXM2-16GB", "count": 8, "memory_mib": 16160, "driver": "580.126.09",
"apps": [[GPU index, pid, used MiB], ...]}. The file may be changed at any time, for example to add a process of
another user.
"""

import json
import sys

HOST = "/run/host/gpus.json"


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{index:012x}"


def main() -> int:
    with open(HOST, encoding="utf-8") as stream:  # noqa: PTH123 - a standalone script
        gpus = json.load(stream)
    options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
    if not gpus["count"]:
        print("No devices were found")
        return 6
    if "query-compute-apps" in options:
        fields = {
            "gpu_uuid": lambda app: uuid(app[0]),
            "pid": lambda app: app[1],
            "used_memory": lambda app: app[2],
            "used_gpu_memory": lambda app: app[2],
            "process_name": lambda _: "python3",
        }
        rows = [[fields[name](app) for name in options["query-compute-apps"].split(",")] for app in gpus["apps"]]
    elif "query-gpu" in options:
        known = {
            "index": str,
            "uuid": uuid,
            "name": lambda _: gpus["model"],
            "memory.total": lambda _: gpus["memory_mib"],
            "memory.used": lambda _: 0,
            "driver_version": lambda _: gpus["driver"],
            "utilization.gpu": lambda _: 0,
            "ecc.errors.uncorrected.volatile.total": lambda _: 0,
        }
        rows = [[known[name](index) for name in options["query-gpu"].split(",")] for index in range(gpus["count"])]
    else:
        rows = [[f"GPU {index}: {gpus['model']} (UUID: {uuid(index)})"] for index in range(gpus["count"])]
    for row in rows:
        print(", ".join(map(str, row)))
    return 0


sys.exit(main())
