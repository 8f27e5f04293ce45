"""Only a node with an instance profile gets the credentials of a role."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cloudgpu.rehearsal.nodes.node import SimulatedNode
from cloudgpu.rehearsal.nodes.record import NodePaths, SimulatedNodeRecord
from tests.unit.rehearsal.nodes.test_nodes_records import _SPEC

CREDENTIALS = object()


@pytest.mark.parametrize(("role", "expected"), [("trainer", CREDENTIALS), ("", None)])
def test_buckets_are_mounted_with_credentials_only_for_a_node_with_a_role(tmp_path, role, expected):
    record = SimulatedNodeRecord(replace(_SPEC, role=role), "127.1.2.3", 2222, 1338, "SHA256:x", "cage")
    host = SimpleNamespace(now_s=lambda: 0.0, credentials=lambda: CREDENTIALS, ended=None, shared=None)
    node = SimulatedNode(record, NodePaths(tmp_path), SimpleNamespace(process=None), host)
    assert node._views.credentials() is expected
