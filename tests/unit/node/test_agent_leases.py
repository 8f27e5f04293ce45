"""What other login users may write into the directory of leases, and what is made of it."""

import json
import time

import pytest

from cloudgpu.node.agent.leases import store

GOOD = {"token": "t", "cluster": "lab", "owner": "ann", "gpus": [0, 1], "expires_epoch_s": int(time.time()) + 3600}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "FOLDER", str(tmp_path))
    (tmp_path / "lease-good").write_text(json.dumps(GOOD))
    return tmp_path


@pytest.mark.parametrize(
    "content",
    [
        "null",
        "[" * 60_000,
        '{"expires_epoch_s": Infinity, "gpus": []}',
        json.dumps({**GOOD, "expires_epoch_s": float("inf")}),
        json.dumps({**GOOD, "expires_epoch_s": 10**30}),
        json.dumps({**GOOD, "expires_epoch_s": True}),
        json.dumps({**GOOD, "expires_epoch_s": -1}),
        json.dumps({**GOOD, "gpus": [float("inf")]}),
        json.dumps({**GOOD, "gpus": [True, "1"]}),
        json.dumps({**GOOD, "gpus": [10**30]}),
    ],
    ids=lambda text: text[:24],
)
def test_a_lease_that_is_none_hides_no_other(folder, content):
    (folder / "lease-bad").write_text(content)
    assert store._read("lease-bad") is None
    found = store._read("lease-good")
    assert (found.cluster, found.gpus) == ("lab", (0, 1))
    assert "GPUs 0-1 by ann" in found.description
