"""Run in a separate network namespace: the rehearsal's S3, a metadata service at its usual address, and commands."""

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3

from cloudgpu.node.payload import agent_name, agent_source
from cloudgpu.paths import Home
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.nodes.servers.metadata import MetadataService
from cloudgpu.rehearsal.nodes.values import NodeSpec, RoleCredentials
from cloudgpu.rehearsal.server.sigv4 import load_or_create
from tests.rehearsal.endpoint.conftest import find_running_cloud, start_server

ADDRESS = "169.254.169.254"
OBJECTS = ("digits/a.txt", "digits/sub/b.txt")


def spec() -> NodeSpec:
    known: dict[str, Any] = {
        "instance_id": "i-1", "instance_type": "g5.xlarge", "region": "us-east-1", "zone": "us-east-1a",
        "image_id": "ami-1", "address": "", "user": "ubuntu", "authorized_keys": (), "user_data": b"", "gpu": "A10G",
        "gpus": 1, "gpu_memory_mib": 1, "efa_interfaces": 0, "role": "nodes",
    }  # fmt: skip
    return NodeSpec(**known)


def serve_metadata(keys: RoleCredentials) -> None:
    bound = socket.create_server((ADDRESS, 80))

    async def forever() -> None:
        service = MetadataService(spec(), ADDRESS, 80, now_s=time.time, credentials=lambda: keys)
        await service.listen(bound)
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(forever()), daemon=True).start()


def agent(folder: Path, verb: str, request: dict[str, Any]) -> Any:
    path = folder / agent_name()
    path.write_bytes(agent_source())
    done = subprocess.run(
        [sys.executable, str(path), verb], input=json.dumps(request).encode(), capture_output=True, check=False
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    folder = Path(sys.argv[1])
    for command in ("ip link set lo up", f"ip address add {ADDRESS}/32 dev lo"):
        subprocess.run(command.split(), check=True)
    home = Home(folder / f"home-{secrets.token_hex(2)}").ensure()
    server, _, thread = start_server(home)
    cloud = find_running_cloud(home)
    role = load_or_create(RehearsalFiles(home.rehearsal).keys).role
    serve_metadata(
        RoleCredentials(role.access_key_id, role.secret_access_key, "for show", datetime.now(UTC) + timedelta(hours=1))
    )
    s3 = boto3.client(
        "s3", region_name="us-east-1", endpoint_url=cloud.url,
        aws_access_key_id=cloud.access_key_id, aws_secret_access_key=cloud.secret_access_key,
    )  # fmt: skip
    s3.create_bucket(Bucket="sets")
    for key in OBJECTS:
        s3.put_object(Bucket="sets", Key=key, Body=key.encode())
    silent = socket.create_server(("127.0.0.1", 0))
    print(json.dumps({"ready": ADDRESS}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "endpoint":
            answer = {"url": cloud.url}
        elif asked["do"] == "silence":
            answer = {"url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        elif asked["do"] == "keys":
            answer = {"keys": [one["Key"] for one in s3.list_objects_v2(Bucket="sets")["Contents"]]}
        elif asked["do"] == "agent":
            answer = {"out": agent(folder, asked["verb"], asked["spec"])}
        else:
            done = subprocess.run(asked["command"], shell=True, capture_output=True, text=True, check=False)
            answer = {"out": done.stdout}
        print(json.dumps(answer), flush=True)
    server.stop_keeping_nodes()
    thread.join(20)
    os._exit(0)  # the metadata service has no end


if __name__ == "__main__":
    main()
