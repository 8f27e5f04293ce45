"""s3fs over FUSE with the command line that nodes use, in a network that has a metadata service."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.node.dataset_mounts import DataMount, build_mount_order
from cloudgpu.recipe.sources import source_of

pytestmark = [pytest.mark.main_path, pytest.mark.system]

INSIDE = Path(__file__).with_name("inside_network.py")
ADDRESS = "169.254.169.254"
"""Where s3fs asks for the keys of the node's role."""


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Start a process in a network namespace that serves role and bucket; yield a function that sends it commands."""
    if os.geteuid() != 0 or not shutil.which("s3fs") or not Path("/dev/fuse").exists():
        pytest.skip("needs the superuser, s3fs and /dev/fuse")
    folder = str(tmp_path_factory.mktemp("network"))
    unshared = ["unshare", "--net", "--mount", "--propagation", "private", sys.executable, str(INSIDE), folder]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(unshared, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def tell(**what):
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    with process:
        assert json.loads(process.stdout.readline()) == {"ready": ADDRESS}
        yield tell
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.parametrize("writable", [False, True])
def test_s3fs_mounts_bucket_with_node_role(network, tmp_path, writable):
    endpoint = network(do="endpoint")["url"]
    place = tmp_path / "root" / "data" / "sets"
    mount = DataMount("sets", source_of("s3://sets/digits"), str(place), "us-east-1", writable, "s3fs", endpoint)
    made = build_mount_order(mount)
    wanted = {"name": "sets", "source": "s3://sets/digits", "target": str(place), "root": str(tmp_path / "root")}
    spec = {"run": "one", "mounts": [{**wanted, "argv": list(made.argv), "program": made.program, "seconds": 20}]}
    assert network(do="agent", verb="mount", spec=spec)["out"] == {"mounted": ["sets"], "reused": []}
    seen = network(do="sh", command=f"cd {place} && cat a.txt sub/b.txt && echo new >c.txt; mount | grep {place}")[
        "out"
    ]
    assert seen.startswith("digits/a.txtdigits/sub/b.txt")
    assert (f"s3fs on {place} type fuse.s3fs (ro," in seen) is not writable
    assert network(do="agent", verb="unmount", spec={"run": "one"})["out"] == {"unmounted": [str(place)]}
    assert network(do="keys")["keys"] == ["digits/a.txt", *(["digits/c.txt"] if writable else []), "digits/sub/b.txt"]


def test_s3fs_mount_times_out_when_s3_is_silent(network, tmp_path):
    silent = network(do="silence")["url"]
    place = tmp_path / "root" / "data" / "sets"
    made = build_mount_order(DataMount("sets", source_of("s3://sets"), str(place), "us-east-1", False, "s3fs", silent))
    wanted = {"name": "sets", "source": "s3://sets", "target": str(place), "root": str(tmp_path / "root")}
    spec = {"run": "one", "mounts": [{**wanted, "argv": list(made.argv), "program": "s3fs", "seconds": 2}]}
    answer = network(do="agent", verb="mount", spec=spec)["out"]
    assert answer["code"] == "mount-hangs"
    assert "dataset sets: s3://sets was" in answer["error"]
    assert str(place) not in network(do="sh", command="cat /proc/self/mountinfo")["out"]
