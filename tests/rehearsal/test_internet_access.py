"""Nodes to which EC2 assigns no public address: their bootstrap waits for internet access."""

import json

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


def bootstraps(workspace):
    """Return the current bootstrap state of each node that has begun its bootstrap."""
    files = workspace.home.root.glob("rehearsal/nodes/instances/*/disk/**/var/lib/cloudgpu/bootstrap.json")
    return [json.loads(path.read_text()) for path in files if "merged" not in path.parts]


def test_bootstrap_of_nodes_waits_until_they_have_their_elastic_ips(workspace, until):
    workspace.recipe(resources="{instance_type: p4d.24xlarge, nodes: 2, regions: [us-east-1]}")
    late = {"id": "late", "action": "AssociateAddress", "do": "hold"}
    client.put_script(workspace.cloud, {"nodes": [{"do": "bare-image"}], "rules": [late]})
    process = workspace.popen("up", "plain", "--yes")
    workspace.until_held(process)
    until(lambda: [node["step"] for node in bootstraps(workspace)] == ["driver (waiting for internet access)"] * 2)
    assert process.poll() is None
    client.put_faults(workspace.cloud, [])
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    done = [(node["state"], {step["name"]: step["state"] for step in node["steps"]}) for node in bootstraps(workspace)]
    assert [(state, steps["driver"]) for state, steps in done] == [("done", "done")] * 2
    workspace.run("down", "plain")
    assert workspace.left() == {}
