"""Two hosts with the same home directory and the same /var/tmp, as on NFS, run one cluster side by side."""

import os
from pathlib import Path

import pytest

from tests.hosts.lab import Spec, lab, missing_tools
from tests.system.hosts.callers import Caller, leftovers


@pytest.mark.skipif(bool(missing_tools()) and not os.environ.get("CI"), reason="the simulated hosts need more tools")
def test_hosts_that_share_home_directory_and_leases_run_one_cluster(tmp_path: Path):
    specs = [Spec("red", gpus="V100:8"), Spec("blue", gpus="V100:8", shares_with="red")]
    with lab(tmp_path / "lab", specs) as hosts:
        lea = Caller(hosts, tmp_path / "lea", "lea")
        came = lea.json("train", "tiny", "--on", "ssh", "--yes")
        assert (came["state"], came["left"], len(came["outputs"]["files"])) == ("succeeded", [], 4)
        lea.run("up", "tiny", "--on", "ssh", "--name", "kept", "--yes")
        assert len(list((hosts["red"].folder / "vartmp/cloudgpu").iterdir())) == 2
        ended = lea.json("down", "kept")
        assert ended["instances_ended"] == ["red", "blue"]
        assert [leftovers(host) for host in hosts.hosts.values()] == [[], []]
