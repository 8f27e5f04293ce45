"""Run `train --on ssh` in containers on two hosts, each with its own engine, and a registry with a password.

The GPUs are simulated. The engines use NVIDIA's runtime, which is runc under that name here.
"""

import json
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.lab import Host, Lab, Spec, lab
from tests.system.hosts.callers import Caller, leftovers

pytestmark = pytest.mark.system
PLACE = "10.77.0.1:5000"
USER, PASSWORD = "$oauthtoken", f"it's-{secrets.token_hex(8)}"
ENGINE = (
    "dockerd --data-root=/var/tmp/docker --exec-root=/run/docker --pidfile=/run/docker.pid --iptables=false "
    "--bridge=none --storage-driver=vfs --host=unix:///var/run/docker.sock --group=lab --add-runtime=nvidia=runc "
    f"--insecure-registry={PLACE}"
)
RECIPE = f"""
schema: 1
name: boxed
resources: {{gpu: "V100:8", nodes: 2}}
environment:
  container: {{image: "{PLACE}/team/boxed:1", login: "{USER}", password: REGISTRY_KEY, memlock: null}}
  secrets: [TOKEN]
workdir: .
setup: |
  echo "setup as $(id -u) with token ${{#TOKEN}}"
  echo "installed by setup" >/etc/installed
  mkdir made; cat /etc/image >made/copy
launch: {{with: torchrun, ranks_per_node: 1, command: sh job.sh}}
metrics:
  speed: {{pattern: 'speed=(?P<value>[0-9.]+)', better: higher}}
outputs: [outputs/]
budget: {{expiry: 30m}}
"""
JOB = """
echo "rank $RANK of $WORLD_SIZE as $(id -u), token ${#TOKEN}, key ${#REGISTRY_KEY}, GPUs $NVIDIA_VISIBLE_DEVICES"
echo "speed=1$RANK.5"
cat /etc/installed made/copy
cat /etc/image >outputs/rank-$RANK.txt
"""


def registry(folder: Path, hosts: Lab) -> subprocess.Popen[str]:
    users = subprocess.run(["htpasswd", "-inBC4", USER], input=PASSWORD, check=True, capture_output=True, text=True)
    (folder / "users").write_text(users.stdout)
    subject = ["-subj", "/CN=registry", "-keyout", folder / "key", "-out", folder / "cert"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject], check=True, capture_output=True
    )
    config = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": PLACE, "tls": {"certificate": str(folder / "cert"), "key": str(folder / "key")}},
        "auth": {"htpasswd": {"realm": "tests", "path": str(folder / "users")}},
    }
    (folder / "config.yml").write_text(json.dumps(config))
    return hosts.start_client(["docker-registry", "serve", str(folder / "config.yml")])


def image(host: Host, rootfs) -> str:
    """Build the image on a host, push it and return its repository digest."""
    shown = host.run(["/run/host/bin/nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]).stdout
    smi = f"#!/bin/sh\ncat <<END\n{shown}END\n"
    folder = rootfs(host.folder / "vartmp/rootfs", **{"nvidia-smi": smi, "bash": '#!/bin/sh\nexec sh "$@"\n'})
    (folder / "etc/image").write_text("written in the container\n")
    line = f"tar -C /var/tmp/rootfs -c . | docker import - {PLACE}/team/boxed:1"
    host.run(["sh", "-c", line])
    host.run(["sh", "-c", f"printf %s \"{PASSWORD}\" | docker login -u '{USER}' --password-stdin {PLACE}"])
    host.run(["docker", "push", f"{PLACE}/team/boxed:1"])
    digest = host.run(["docker", "image", "inspect", f"{PLACE}/team/boxed:1", "--format", "{{index .RepoDigests 0}}"])
    host.run(["docker", "logout", PLACE])
    host.run(["docker", "rmi", f"{PLACE}/team/boxed:1"])
    host.run(["rm", "-r", "/var/tmp/rootfs"])
    return digest.stdout.strip()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("boxes"), [Spec("red", gpus="V100:8"), Spec("blue", gpus="V100:8")]) as made:
        for host in made.hosts.values():
            host.run(["sh", "-c", f"{ENGINE} >/var/tmp/dockerd.log 2>&1 &"])
        for host in made.hosts.values():
            deadline = time.monotonic() + 60
            while host.run(["docker", "info"], check=False).returncode:
                assert time.monotonic() < deadline, host.run(["cat", "/var/tmp/dockerd.log"]).stdout
                time.sleep(0.1)
        yield made
        for host in made.hosts.values():
            host.run(["sh", "-c", "kill $(cat /run/docker.pid); while [ -e /run/docker.pid ]; do sleep 0.1; done"])


def test_containerized_run_on_two_hosts_pulls_image_and_cleans_up(hosts: Lab, tmp_path: Path, rootfs, monkeypatch):
    served = registry(tmp_path, hosts)
    try:
        pinned = image(hosts["red"], rootfs)
        lea = Caller(hosts, tmp_path / "lea", "lea")
        recipe = lea.folder / "recipes/boxed"
        recipe.mkdir()
        (recipe / "recipe.yaml").write_text(RECIPE)
        (recipe / "job.sh").write_text(JOB)
        monkeypatch.setenv("TOKEN", "s3cret")
        assert "REGISTRY_KEY is not set" in lea.run("train", "boxed", "--on", "ssh", "--yes", code=2).stderr
        monkeypatch.setenv("REGISTRY_KEY", PASSWORD)
        came = lea.json("train", "boxed", "--on", "ssh", "--yes", "--cluster", "c1", "--keep")
        for host in hosts.hosts.values():
            local = host.run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "cloudgpu-setup"]).stdout
            assert local.startswith("cloudgpu-setup:boxed-")
            assert "s3cret" not in host.run(["docker", "image", "inspect", local.strip()]).stdout
        again = lea.run("train", "boxed", "--on", "ssh", "--yes", "--cluster", "c1")
        assert "setup already ran on every node with the same inputs" in again.stdout
        assert lea.json("down", "c1", "--yes")["left"] == []
        assert came["state"] == "succeeded"
        logs = sorted((lea.home / "runs" / came["run_id"] / "logs").glob("rank-*.log"))
        assert [path.read_text().splitlines()[0] for path in logs] == [
            f"rank {rank} of 2 as 0, token 6, key 0, GPUs all" for rank in (0, 1)
        ]
        for path in logs:
            assert path.read_text().splitlines()[-2:] == ["installed by setup", "written in the container"]
        outputs = lea.home / "runs" / came["run_id"] / "outputs"
        assert (outputs / "node-1/outputs/rank-1.txt").read_text() == "written in the container\n"
        assert came["image"] == pinned
        for path in lea.home.rglob("*"):
            assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path
    finally:
        served.terminate()
        served.communicate(timeout=20)
    for host in hosts.hosts.values():
        assert host.run(["docker", "ps", "--all", "--quiet"]).stdout == ""
        assert host.run(["docker", "images", "--quiet", "cloudgpu-setup"]).stdout == ""
        assert leftovers(host) == []
