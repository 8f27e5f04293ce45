"""Fault scripts: the library, files, parameters, and several scripts together."""

import json
import re
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from typing import get_args

import pytest

from cloudgpu.cli.commands.rehearsal.fault import active_fault_lines, library_lines, read_given, script_lines
from cloudgpu.errors import UsageError
from cloudgpu.rehearsal.faults import scripts
from cloudgpu.rehearsal.faults.api_faults import Conditions
from cloudgpu.rehearsal.faults.node_faults import (
    FaultInjector,
    NodeFault,
    NodeFaultKind,
    node_fault_from,
    node_fault_json,
)
from cloudgpu.rehearsal.nodes.values import NodeSpec
from tests.documentation import blocks_for


def spec(number: int, *, spot: bool = False, zone: str = "us-east-1c", gpu: str = "V100", gpus: int = 8) -> NodeSpec:
    return NodeSpec(
        instance_id=f"i-{number}", instance_type="p3dn.24xlarge", region="us-east-1", zone=zone, image_id="ami-1",
        address="", user="ubuntu", authorized_keys=(), user_data=b"", gpu=gpu, gpus=gpus, gpu_memory_mib=1,
        efa_interfaces=1, spot=spot,
    )  # fmt: skip


@pytest.mark.parametrize("name", scripts.builtin_scripts())
def test_every_builtin_fault_has_an_effect_and_description(name):
    script = scripts.builtin_scripts()[name]
    whole = scripts.combine_scripts([script], {})
    assert any(whole.values())
    assert "{" not in json.dumps(list(whole["capacity"]) + list(whole["quotas"])), whole
    assert 20 <= len(script.description) <= 72
    assert script.description.endswith(".")
    text = json.dumps(dict(script.parts))
    assert all(f"{{{parameter}}}" in text for parameter in script.parameters)


def test_fault_library_has_at_least_30_scripts():
    assert len(scripts.builtin_scripts()) >= 30


def test_fault_parameters_are_substituted_with_their_type():
    found = scripts.find_script("zone-dry")
    assert scripts.combine_scripts([found], {})["capacity"] == {"us-east-1c/*/*": 0}
    given = {"zone": "us-west-2b", "type": "p4d.*"}
    assert scripts.combine_scripts([found], given)["capacity"] == {"us-west-2b/p4d.*/*": 0}
    assert scripts.combine_scripts([scripts.find_script("slow-terminate")], {"looks": "7"})["cloud"] == {
        "terminate_looks": 7
    }
    with pytest.raises(UsageError, match="looks=many is not a number"):
        scripts.combine_scripts([scripts.find_script("slow-terminate")], {"looks": "many"})
    with pytest.raises(UsageError, match="none of these fault scripts has a parameter colour"):
        scripts.combine_scripts([found], {"colour": "red"})


def test_several_fault_scripts_are_combined():
    whole = scripts.combine_scripts(
        [scripts.find_script(name) for name in ("slow-terminate", "console-late", "denied")], {}
    )
    assert whole["cloud"] == {"terminate_looks": 4, "console_calls": 3}
    assert [row["action"] for row in whole["rules"]] == ["CreateFleet"]


def test_fault_file_can_be_yaml_or_a_json_list(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("description: Mine.\nrules: [{action: CreateVpc, code: InternalError}]\ncloud: {unseen_calls: 1}\n")
    found = scripts.find_script(str(path))
    assert (found.name, found.description) == ("mine.yaml", "Mine.")
    assert scripts.combine_scripts([found], {})["cloud"] == {"unseen_calls": 1}
    path = tmp_path / "rules.json"
    path.write_text('[{"action": "CreateFleet"}]')
    assert scripts.combine_scripts([scripts.find_script(str(path))], {})["rules"] == [{"action": "CreateFleet"}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("true", "it must be a mapping or a list"),
        ("[{", "is not valid"),
        ("weather: bad", "unknown part 'weather'"),
        ("rules: {}", "rules must be a list"),
        ("rules: [{acton: X}]", "unknown key 'acton'"),
        ("cloud: {fog: 1}", "unknown condition 'fog'"),
        ("nodes: [{do: explode}]", "`do` must be one of"),
        ("nodes: [{do: sshd-dies, match: {colour: red}}]", "not colour"),
        ("nodes: [{do: sshd-dies, count: two}]", "count 'two' is not a number"),
        ("nodes: [{do: cuda-fails, error: 0}]", "error 0 is not between 1 and 9999"),
        ("nodes: [{do: cuda-fails, error: null}]", "error None is not between 1 and 9999"),
        ("nodes: [{do: sshd-dies, whom: all}]", "unknown key 'whom'"),
    ],
)
def test_invalid_fault_script_error_states_the_reason(text, words, tmp_path: Path):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as err:
        scripts.combine_scripts([scripts.find_script(str(path))], {})
    assert words in str(err.value)
    assert "odd.yaml" in str(err.value)


def test_unknown_fault_name_suggests_the_nearest_match(tmp_path: Path):
    with pytest.raises(UsageError, match='did you mean "zone-dry"'):
        scripts.find_script("zone-dyr")
    with pytest.raises(UsageError, match="cannot read"):
        scripts.find_script(str(tmp_path / "none.yaml"))


def test_fault_settings_are_parsed_from_arguments():
    assert read_given(["zone=us-east-1d", "type="]) == {"zone": "us-east-1d", "type": ""}
    for wrong in ("zone", "=x", ""):
        with pytest.raises(UsageError):
            read_given([wrong])


def test_node_fault_hits_its_count_and_persists_on_those_nodes():
    unlucky = FaultInjector()
    unlucky.put([NodeFault("sshd-dies", count=1), NodeFault("boot-hangs", {"zone": "*d"})])
    assert [fault.do for fault in unlucky.at_boot(spec(1))] == ["sshd-dies"]
    assert unlucky.at_boot(spec(2)) == ()
    assert [fault.do for fault in unlucky.at_boot(spec(1))] == ["sshd-dies"], "at its next boot as well"
    assert unlucky.now(spec(1)) == ()
    assert [fault.do for fault in unlucky.at_boot(spec(3, zone="us-east-1d"))] == ["boot-hangs"]
    unlucky.put([NodeFault("boot-fails"), NodeFault("spot-notice", seconds=120), NodeFault("metadata-off")])
    assert [fault.do for fault in unlucky.now(spec(1))] == ["metadata-off"]
    assert [fault.do for fault in unlucky.now(spec(4, spot=True))] == ["spot-notice", "metadata-off"]


def test_fabric_manager_fault_affects_only_nodes_with_nvswitch():
    unlucky = FaultInjector()
    unlucky.put([NodeFault("fabric-manager-down")])
    assert unlucky.at_boot(spec(1)) == ()
    assert unlucky.at_boot(spec(2, gpu="H100", gpus=1)) == ()
    assert [fault.do for fault in unlucky.at_boot(spec(3, gpu="H100", gpus=8))] == ["fabric-manager-down"]


@pytest.mark.parametrize(
    "fault", [NodeFault("disk-full", {"zone": "us-*"}, count=2, kib=16), NodeFault("cuda-fails", error=803)]
)
def test_node_fault_round_trips_through_json(fault):
    assert node_fault_from(json.loads(json.dumps(node_fault_json(fault)))) == fault


def test_fault_scripts_and_active_faults_are_shown():
    text = dedent("""\
        description: Two things.
        parameters: {times: 2}
        rules: [{action: CreateFleet, times: "{times}"}]
        capacity: {a/b/c: 0, d/e/f: 1}
        nodes: [{do: sshd-dies}]
    """)
    script = scripts.parse_script("mine", text)
    assert script_lines(script) == [
        "mine: Two things.",
        "  --set times=2",
        "  rules:",
        '    {"action": "CreateFleet", "times": "{times}"}',
        "  capacity:",
        '    {"a/b/c": 0}',
        '    {"d/e/f": 1}',
        "  nodes:",
        '    {"do": "sshd-dies"}',
    ]
    other = scripts.parse_script("longer-name", "cloud: {console_empty: true}")
    assert library_lines([script, other], ["mine"]) == [
        "*  mine         Two things.",
        "   longer-name",
        "active (*): mine",
    ]
    assert library_lines([other], [])[-1] == "active: none"
    nothing = {"names": [], "rules": [], "capacity": {}, "quotas": {}, "cloud": {}, "nodes": []}
    assert active_fault_lines(nothing) == ["simulated faults: none"]
    assert active_fault_lines({**nothing, "names": ["x"], "cloud": {"console_empty": True}}) == [
        "simulated faults: x",
        "  cloud:",
        '    {"console_empty": true}',
    ]


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/faults.md").read_text(encoding="utf-8")
DIFFERENCES = (ROOT / "docs/reference/rehearsal.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", scripts.builtin_scripts().values(), ids=lambda script: script.name)
def test_faults_page_documents_every_builtin_fault(script):
    given = ", ".join(f"`{name}={value}`" for name, value in script.parameters.items()) or "-"
    assert f"| `{script.name}` | {script.description} | {given} |\n" in PAGE


def test_fault_script_on_the_faults_page_has_every_part_and_can_be_applied():
    (text,) = blocks_for(__file__, "docs/reference/faults.md")
    script = scripts.parse_script("page", text)
    assert set(script.parameters) == {"zone", "looks"}
    applied = scripts.combine_scripts([script], {"zone": "us-east-1c", "looks": "2"})
    assert {"capacity", "quotas", "cloud", "nodes", "rules"} <= set(applied)
    assert applied["capacity"] == {"us-east-1c/*/*": 0}
    assert applied["cloud"] == {"terminate_looks": 2}
    for fault in applied["nodes"]:
        node_fault_from(fault)


def test_faults_page_documents_every_condition_and_node_fault():
    names = [item.name for item in fields(Conditions)] + list(get_args(NodeFaultKind))
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_tests_referenced_by_the_rehearsal_page_exist():
    named = set(re.findall(r"`(?:tests/[\w/]+/)?(test_\w+\.py)`", DIFFERENCES))
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(named) > 5
    assert named <= there
