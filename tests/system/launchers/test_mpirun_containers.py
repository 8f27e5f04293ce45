"""Open MPI in containers on two hosts: mpirun in one container starts its daemon in the other."""

import io
import re
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.lab import Host, Lab, Spec, lab

REDUCE = (Path(__file__).parent / "reduce.py").read_text()
IMAGE = "tests/mpi:1"
# The image is almost empty. Open MPI, Python and the OpenSSH client of this machine are mounted into it.
RECIPE = f"""
    schema: 1
    name: contained
    resources: {{instance_type: p3dn.24xlarge, nodes: 2}}
    environment:
      container:
        image: {IMAGE}
        pull: never
        memlock: null
        stack_mib: null
        flags: ["--volume=/usr:/usr:ro", "--volume=/etc:/etc:ro", "--hostname=inside"]
      env: {{NOTE: "a b;c"}}
      secrets: [TOKEN]
    launch: {{with: mpirun, ranks_per_node: 2, command: reduce.py}}
"""
ENGINE = (
    "dockerd --data-root=/var/tmp/docker --exec-root=/run/docker --pidfile=/run/docker.pid --iptables=false "
    "--bridge=none --storage-driver=vfs --host=unix:///var/run/docker.sock"
)


def image() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in ("bin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
        for name in ("sbin", "usr", "etc", "tmp", "root", "home", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
    return made.getvalue()


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts with a Docker engine each."""
    with lab(tmp_path_factory.mktemp("engines"), [Spec("red"), Spec("green", port=2222)]) as hosts:
        for host in hosts.hosts.values():
            host.run(["sh", "-c", f"{ENGINE} >/var/tmp/dockerd.log 2>&1 &"])
        for host in hosts.hosts.values():
            deadline = time.monotonic() + 60
            while host.run(["docker", "info"], check=False).returncode:
                assert time.monotonic() < deadline, host.run(["cat", "/var/tmp/dockerd.log"]).stdout
                time.sleep(0.1)
        first, second = hosts["red"], hosts["green"]
        (first.folder / "vartmp/image.tar").write_bytes(image())
        first.run(["docker", "import", "/var/tmp/image.tar", IMAGE])
        first.run(["docker", "save", "--output=/var/tmp/saved.tar", IMAGE])
        (first.folder / "vartmp/saved.tar").rename(second.folder / "vartmp/saved.tar")
        second.run(["docker", "load", "--input=/var/tmp/saved.tar"])
        yield hosts
        for host in hosts.hosts.values():
            host.run(["sh", "-c", "kill $(cat /run/docker.pid); while [ -e /run/docker.pid ]; do sleep 0.1; done"])


def containers(host: Host) -> str:
    return host.run(["docker", "ps", "--all", "--format", "{{.Names}}"]).stdout


def test_mpi_ranks_in_both_containers_complete_allreduce(launches_on, engines) -> None:
    red, green = engines["red"], engines["green"]
    result = launches_on(engines, user="root", gpus=0).run(
        RECIPE, red, green, env={"TOKEN": "s3cret"}, reduce_py=REDUCE
    )
    assert result.verdict["state"] == "succeeded", (result.messages, result.stderr)
    # mpirun and the ssh that it starts both set the process group of ssh; mpirun warns if it comes second.
    lines = [line for line in result.lines if not re.fullmatch(r"\[inside:\d+\] plm:rsh: Warning: setpgid\(.*", line)]
    assert [line.split(":")[0] for line in lines] == [
        "rank 0 of 4 on inside node 0",
        "rank 1 of 4 on inside node 0",
        "rank 2 of 4 on inside node 1",
        "rank 3 of 4 on inside node 1",
    ]
    assert all("sum=1111 note='a b;c' token=******" in line for line in lines)
    assert containers(red) == containers(green) == ""
