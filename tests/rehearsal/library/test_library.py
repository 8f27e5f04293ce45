"""Every fault of the library: the command exits as expected and names the cause, and `down` leaves nothing."""

from dataclasses import dataclass, field
from decimal import Decimal

import pytest

from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.faults import scripts

pytestmark = pytest.mark.rehearsal

SECOND = {"us-east-1d"}


@dataclass(frozen=True)
class Case:
    """The expected result of `up` (or `train`) under a fault.

    Attributes:
        messages: Texts in the error message.
        zones: Zones of the nodes afterwards, if they show that the fault had an effect.
        fires: Whether rules or conditions of the fault must have fired.
        nodes: Minimum number of nodes into which the fault was injected.
        down: Exit code of `down` while the fault is still active.
    """

    code: int = 0
    messages: tuple[str, ...] = ()
    zones: set[str] = field(default_factory=set)
    fires: bool = False
    nodes: int = 0
    command: str = "up"
    regions: str = "[us-east-1]"
    market: str = "on-demand"
    type: str = "p3dn.24xlarge"
    down: int = 0
    planned_before: bool = False
    """Whether the plan has the quotas from before the fault, so that only the launch meets the fault."""
    parameters: dict[str, object] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)


SHORT_BOOT = {"boot_seconds": 6}
CASES = {
    "zone-dry": Case(zones=SECOND),
    "region-dry": Case(regions="[us-east-1, us-west-2]", zones={"us-west-2b"}),
    "partial-capacity": Case(4, ("us-east-1c p3dn.24xlarge on-demand: no capacity", "us-east-1d")),
    "short-fleet": Case(4, ("us-east-1c p3dn.24xlarge on-demand: no capacity", "us-east-1d")),
    "capacity-500": Case(zones=SECOND, fires=True),
    "quota-bound": Case(4, ("quota", "L-417A185B"), planned_before=True),
    "spot-quota": Case(4, ("quota", "L-7212CCBC"), market="spot", planned_before=True),
    "api-throttled": Case(fires=True, parameters={"burst": 4, "per_s": 8.0}),
    "500-after-effect": Case(fires=True),
    "no-answer-after-effect": Case(8, ("launching the nodes: no response",), fires=True),
    "unavailable": Case(fires=True),
    "expired-token": Case(8, ("credentials expired",), fires=True),
    "denied": Case(8, ("launching the nodes: You are not authorized",), fires=True),
    "profile-propagation": Case(fires=True),
    "eventual-consistency": Case(fires=True),
    "launch-consistency": Case(fires=True),
    "slow-terminate": Case(),
    "dependency-violation": Case(),
    "insufficient-addresses": Case(zones=SECOND),
    "new-account": Case(7, ("Running On-Demand P instances (L-417A185B) allow only 0",)),
    "retired-type": Case(7, ("p3dn.24xlarge is not offered in us-east-1",)),
    "console-late": Case(fires=True),
    "console-empty": Case(8, ("no host key on the console",), fires=True, settings=SHORT_BOOT),
    "clock-skew": Case(8, ("correct this machine's clock",), down=8),
    "node-clock-skew": Case(nodes=2),
    "launch-fails": Case(zones=SECOND),
    "kms-key-denied": Case(4, ("get-ebs-default-kms-key-id", "kms_key_id")),
    "node-never-boots": Case(8, ("no host key on the console",), settings=SHORT_BOOT),
    "sshd-dies": Case(9, ("refused the connection",), command="train", settings={"boot_seconds": 10}),
    "host-key-changed": Case(9, ("has an unexpected host key",), command="train"),
    "metadata-off": Case(command="train"),
    "newer-libraries": Case(nodes=2),
    "driver-late": Case(nodes=2),
    "cuda-fails": Case(
        5, ("is not ready", "CUDA does not initialize (error 999, CUDA_ERROR_UNKNOWN)"), command="train"
    ),
    "fabric-manager-down": Case(
        5,
        (
            "is not ready: its bootstrap failed at step fabric: CUDA does not initialize: error 802; "
            "Fabric Manager: Failed to start NVIDIA fabric manager service.",
            "Fabric Manager needs exactly the driver's version",
        ),
        command="train",
        type="p4d.24xlarge",
    ),
    "disk-full": Case(5, ("is not ready", "disk"), command="train"),
}
LATER = ("spot-withdrawn", "rebalance")
"""Faults that affect a cluster that is already running."""


def test_every_fault_has_a_test_case():
    assert sorted([*CASES, *LATER]) == sorted(scripts.builtin_scripts())


@pytest.mark.parametrize("name", CASES)
def test_command_handles_the_fault_and_down_leaves_nothing(fault_cloud, name):
    case = CASES[name]
    recipe = fault_cloud.recipe(regions=case.regions, market=case.market, type=case.type)
    # Plans use quotas cached within the last ten minutes, including those that an earlier case has read.
    fault_cloud.workspace.home.catalog("rehearsal").quotas.unlink(missing_ok=True)
    if case.planned_before:
        fault_cloud.ok("plan", recipe)
    fault_cloud.apply(name, **case.parameters)
    result = fault_cloud.run(case.command, recipe, "--yes", **case.settings)
    assert result.code == case.code, result.text
    for message in case.messages:
        assert message in result.err, result.text
    is_running = case.command == "up" and case.code == 0
    assert len(fault_cloud.nodes) == (2 if is_running else 0)
    if case.zones:
        assert fault_cloud.zones == case.zones
    assert fault_cloud.fire_count() or not case.fires, "the fault never fired"
    assert len(fault_cloud.injected_faults()) >= case.nodes
    down = fault_cloud.run("down", recipe, "--yes")
    assert down.code == case.down, down.text
    if name in ("slow-terminate", "dependency-violation"):
        assert fault_cloud.fire_count(), "the fault never fired"
    if not case.down:
        fault_cloud.check_empty()


def test_interrupted_spot_cluster_is_terminated_and_can_be_deleted(fault_cloud):
    recipe = fault_cloud.recipe(market="spot")
    fault_cloud.ok("up", recipe, "--yes")
    fault_cloud.apply("rebalance")
    assert fault_cloud.injected_faults() == ["rebalance"] * 2
    fault_cloud.ok("up", recipe, "--yes")  # a rebalance recommendation does not affect the nodes
    fault_cloud.apply("spot-withdrawn")
    client.advance(fault_cloud.workspace.cloud, 110)
    assert len(fault_cloud.nodes) == 2
    client.advance(fault_cloud.workspace.cloud, 15)
    fault_cloud.until(lambda: not fault_cloud.nodes)
    client.advance(fault_cloud.workspace.cloud, -125)
    (cluster,) = [row for row in fault_cloud.json("status", "--refresh")["clusters"] if row["cluster"] == recipe]
    assert (cluster["state"], Decimal(cluster["hourly_usd"])) == ("terminated", 0)
    again = fault_cloud.run("up", recipe, "--yes")
    assert (again.code, "is incomplete" in again.err) == (10, True), again.text
    fault_cloud.ok("down", recipe, "--yes")
    fault_cloud.check_empty()


def test_fault_commands_apply_show_and_clear_faults(fault_cloud):
    output = fault_cloud.ok("rehearsal", "fault", "apply", "zone-dry", "slow-terminate", "--set", "zone=us-east-1d")
    assert output.out.splitlines() == [
        "simulated faults: zone-dry, slow-terminate",
        "  capacity:",
        '    {"us-east-1d/*/*": 0}',
        "  cloud:",
        '    {"terminate_looks": 4}',
    ]
    listed = fault_cloud.json("rehearsal", "fault", "list")
    assert listed["applied"] == ["zone-dry", "slow-terminate"]
    assert len(listed["faults"]) == len(scripts.builtin_scripts())
    shown = fault_cloud.json("rehearsal", "fault", "show", "denied")
    assert (shown["parameters"], list(shown["parts"])) == ({"action": "CreateFleet"}, ["rules"])
    assert fault_cloud.ok("rehearsal", "fault", "clear").out == "simulated faults: none\n"
    applied = fault_cloud.applied_faults()
    assert not any(applied[part] for part in ("names", "rules", "capacity", "quotas", "cloud", "nodes"))
    noticed = fault_cloud.ok("rehearsal", "fault", "apply", "spot-withdrawn", "--set", "seconds=30")
    assert noticed.out.splitlines() == [
        "simulated faults: spot-withdrawn",
        "  nodes:",
        '    {"do": "spot-notice", "seconds": 30}',
    ]
    wrong = fault_cloud.run("rehearsal", "fault", "apply", "zone-dyr")
    assert (wrong.code, 'did you mean "zone-dry"' in wrong.err) == (2, True), wrong.text
