"""A journal and a lease written by an earlier version are read with the same values, and work continues from them.

The earlier version ran a program that updated, replaced, renamed and removed a resource, used secrets and every
option stored then, and was killed during a launch whose response was lost.
"""

import json
import shutil
from pathlib import Path

import pytest

from cloudgpu.engine.direct.journal import load
from cloudgpu.engine.lease import STALE_AFTER_S, ClusterLease
from cloudgpu.errors import BusyError
from tests.unit.engine.conftest import Thing

FORMAT1 = Path(__file__).parent / "fixtures" / "format1"
PROGRAM = """
    a = Thing("a", size=3)
    b = Thing("b", uses=a.id, text=pulumi.Output.secret("s3cr3t-0n3"), opts=ResourceOptions(deleted_with=a))
    Thing("c", opts=ResourceOptions(depends_on=[b], retain_on_delete=True))
    Thing("d", zone="2")
    Thing("e", opts=ResourceOptions(aliases=[pulumi.Alias(name="old")]))
    Thing("f", opts=ResourceOptions(depends_on=[a]))
    pulumi.export("id", a.id)
    pulumi.export("token", pulumi.Output.secret("s3cr3t-tw0"))
"""


@pytest.fixture
def carried_on(workspace):
    """A state home and the cloud resources as the earlier version left them."""
    workspace.journal.parent.mkdir()
    shutil.copy(FORMAT1 / "us-east-1.journal", workspace.journal)
    found = json.loads((FORMAT1 / "things.json").read_text())
    workspace.cloud.things = {key: Thing(**thing) for key, thing in found.items()}
    return workspace


def test_format_1_journal_is_read(carried_on):
    before = carried_on.journal.read_bytes()
    loaded = load(carried_on.journal, carried_on.identity)
    live = {urn.rpartition("::")[2]: resource for urn, resource in loaded.state.live.items()}
    assert {name: resource.id for name, resource in live.items()} == {
        "a": "a-0",
        "b": "b-4",
        "c": "c-5",
        "d": "d-6",
        "e": "e-1",
    }
    assert (loaded.state.condemned, [intent.name for intent in loaded.state.open.values()]) == ([], ["f"])
    assert live["a"].inputs == {"size": 3, "name": "a"}
    assert live["b"].meta.deleted_with == live["a"].urn
    assert live["b"].urn in live["c"].meta.dependencies
    assert (live["a"].meta.protect, live["c"].meta.retain) == (False, True)
    assert live["b"].inputs["text"].startswith("cloudgpu:hidden:")
    assert loaded.sound_bytes == len(before) == carried_on.journal.stat().st_size


def test_program_continues_from_format_1_journal(carried_on):
    """Stored options of `c` that are no longer supported are ignored."""
    applied = carried_on.up(PROGRAM)
    assert dict(applied.changes) == {"same": 6, "adopt": 1}
    assert carried_on.cloud.made == {}, "the lost launch is adopted"
    assert applied.outputs["id"] == "a-0"


def test_destroy_deletes_recorded_and_possibly_created_resources(carried_on):
    carried_on.program(PROGRAM).destroy()
    assert sorted(carried_on.cloud.moments("deleted")) == ["a", "d", "e", "f"], "b goes with a, and c is retained"
    assert carried_on.engine().recorded(carried_on.stack()).resources == ()


def test_format_1_lease_of_other_host_is_respected_until_stale(workspace):
    path = workspace.root / "demo" / "lease"
    path.parent.mkdir()
    shutil.copy(FORMAT1 / "lease", path)
    lease = ClusterLease(path, workspace.clock, "bob")
    with pytest.raises(BusyError, match=r"ann \(process 4321 on laptop\).*since 2026-11-21T00:00:00"), lease.hold():
        pass
    workspace.clock.sleep(2 * STALE_AFTER_S)
    with lease.hold():
        assert json.loads(path.read_text())["owner"] == "bob"
