"""An SSH key replaced after the run started is reported immediately, not retried."""

import time

import pytest

from cloudgpu.ssh.keys import ensure_key

pytestmark = pytest.mark.rehearsal


def test_attach_with_a_replaced_key_fails_fast_and_then_recovers(workspace):
    workspace.recipe()
    run = workspace.json("train", "plain", "--yes", "--detach")
    key, kept = workspace.home.ssh_key, workspace.home.ssh_key.with_suffix(".kept")
    key.rename(kept)
    ensure_key(key)
    began = time.monotonic()
    refused = workspace.json("attach", run["run_id"], code=9)
    took_s = time.monotonic() - began
    assert "refused the key" in refused["error"]["message"]
    assert f"cloudgpu attach {run['run_id']}" in refused["error"]["hint"]
    assert took_s < 30, "a refused login was retried as if the node still booted"
    kept.rename(key)
    assert workspace.json("attach", run["run_id"])["state"] == "succeeded"
    assert workspace.left() == {}
