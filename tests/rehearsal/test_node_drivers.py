"""The driver of a node: built on it where prebuilt modules do not match, and never installed over the image's own."""

import json

import pytest

pytestmark = pytest.mark.rehearsal

ROOT = "$CLOUDGPU_NODE_ROOT"


def read(workspace, cluster, path):
    return workspace.run("ssh", cluster, "--", "sh", "-c", f"'cat {ROOT}{path}'").stdout


def bootstrapped(workspace, *faults):
    """Create a cluster under these faults; return the state of its bootstrap and its node's log of changes."""
    workspace.recipe()
    workspace.run("rehearsal", "fault", "apply", *faults)
    workspace.run("up", "plain", "--yes", "--set", "resources.nodes=1")
    workspace.run("exec", "plain", "--", "cloud-init", "status", "--wait")
    told = json.loads(read(workspace, "plain", "/var/lib/cloudgpu/bootstrap.json"))
    log = read(workspace, "plain", "/var/log/cloudgpu-rehearsal.log")
    workspace.run("down", "plain")
    assert workspace.left() == {}
    return told, [line for line in log.splitlines() if " install " in line and " -s " not in line]


def test_modules_older_than_the_libraries_are_replaced_by_built_ones(workspace):
    told, installs = bootstrapped(workspace, "newer-libraries")
    assert (told["state"], told["error"]) == ("done", "")
    assert any("nvidia-dkms-580-server" in line and "linux-headers-" in line for line in installs)
    assert not any("linux-modules-nvidia" in line for line in installs)


def test_driver_of_the_image_that_loads_late_is_not_replaced(workspace):
    told, installs = bootstrapped(workspace, "driver-late", "--set", "seconds=15")
    assert told["state"] == "done"
    assert {step["name"]: step["state"] for step in told["steps"]}["driver"] == "done"
    assert not any("nvidia" in line for line in installs)
