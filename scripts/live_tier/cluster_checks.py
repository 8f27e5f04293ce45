"""The checks of the levels that launch nodes."""

import json
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from cloudgpu.aws.ec2.ssh_access import parse_fingerprints
from live_tier.checks import FREE_CHECKS, Check, Finding, failed, not_run, open_question, verified
from live_tier.evidence import Evidence
from live_tier.levels import LEVELS

_LEDGER_TOLERANCE = timedelta(seconds=90)
"""Largest difference per node between the ledger and EC2's times. EC2 bills at least a minute."""
_MINIMUM_BILLED = timedelta(minutes=1)
_LONGEST_LIFE = timedelta(minutes=31)
"""The expiry of every level, and a minute for the launch request."""


def _launch(evidence: Evidence) -> Finding:
    document = evidence.document("up")
    if not document.get("nodes"):
        return not_run(evidence, "up")
    nodes = document["nodes"]
    return verified(f"{len(nodes)} x {document['instance_type']} in {document['zone']}")


def _console_fingerprints(evidence: Evidence) -> Finding:
    nodes = evidence.document("up").get("nodes")
    if not nodes:
        return not_run(evidence, "up")
    printed = {
        fingerprint
        for call in evidence.calls("GetConsoleOutput")
        for fingerprint in parse_fingerprints(call["answer"].get("Output") or "")
    }
    pinned = {key for node in nodes for key in node["host_keys"]}
    if not pinned or not pinned <= printed:
        return failed(f"{len(pinned & printed)} of {len(pinned)} pinned host keys are on the console")
    return verified(f"the console shows all {len(pinned)} pinned host keys")


def _bootstrap(evidence: Evidence) -> Finding:
    outputs = evidence.node_outputs("bootstrap state")
    if not outputs:
        return not_run(evidence, "bootstrap state")
    states = [_parsed(output) for output in outputs]
    if any(state.get("state") != "done" for state in states):
        return failed(f"{states[0].get('state', 'no state')}: {states[0].get('step', '')} {states[0].get('error', '')}")
    seconds = max(sum(step["seconds"] for step in state["steps"]) for state in states)
    return verified(f"{len(states[0]['steps'])} steps" + ("" if evidence.simulated else f" in {seconds} s"))


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _expiry(evidence: Evidence) -> Finding:
    up, outputs = evidence.document("up"), evidence.node_outputs("expiry")
    if not up.get("nodes") or not outputs:
        return not_run(evidence, "expiry")
    expires_at = datetime.fromisoformat(up["expires_at"])
    epoch = str(int(expires_at.timestamp()))
    times = [evidence.instance_times().get(node["instance_id"]) for node in up["nodes"]]
    launched = [known.launched_at for known in times if known and known.launched_at]
    if not launched or expires_at - min(launched) > _LONGEST_LIFE:
        return failed(f"the cluster expires at {up['expires_at']}, later than 30 minutes after its launch")
    armed = [f"deadline={epoch}" in output for output in outputs]
    timers = [f"cloudgpu-expiry-{epoch}.timer" in output for output in outputs]
    if not all(armed) or not (evidence.simulated or all(timers)):
        return failed("a node has no power-off timer for the expiry")
    return verified("every node powers itself off 30 minutes after the launch")


def _driver(evidence: Evidence) -> Finding:
    outputs = evidence.node_outputs("driver")
    if not outputs:
        return not_run(evidence, "driver")
    if evidence.simulated:
        return open_question("the rehearsal cloud has no GPU")
    return verified("; ".join(sorted({" ".join(output.split("\n")[0].split()) for output in outputs})))


def _container(evidence: Evidence) -> Finding:
    train = evidence.document("train")
    if "image" not in train:
        return not_run(evidence, "train")
    if evidence.simulated:
        return open_question("the rehearsal cloud runs this recipe without its container")
    return (verified if "@sha256:" in train.get("image", "") else failed)(train.get("image") or "no image")


def _training(evidence: Evidence) -> Finding:
    train = evidence.document("train")
    if not train.get("state"):
        return not_run(evidence, "train")
    if train["state"] != "succeeded":
        return failed(f"{train['state']}: {train.get('reason', '')}")
    accuracy, cuda = (train["metrics"][name]["value"] for name in ("accuracy", "cuda"))
    if cuda != 1 and not evidence.simulated:
        return failed("the network was not trained on the GPU")
    return verified(f"accuracy {accuracy:g} on the {'GPU' if cuda == 1 else 'CPU'}")


def _efa_interfaces(evidence: Evidence) -> Finding:
    nodes = evidence.document("up").get("nodes")
    if not nodes:
        return not_run(evidence, "up")
    kinds = {
        row["InstanceId"]: [card.get("InterfaceType", "") for card in row.get("NetworkInterfaces", [])]
        for row in evidence.instances()
        if row["State"]["Name"] == "running"
    }
    found = [kinds.get(node["instance_id"], []).count("efa") for node in nodes]
    return (verified if found == [1] * len(nodes) else failed)(
        f"EFA interfaces per node: {', '.join(map(str, found)) or 'none'}"
    )


def _efa_devices(evidence: Evidence) -> Finding:
    outputs = evidence.node_outputs("EFA devices")
    if evidence.simulated:
        return open_question("the rehearsal cloud has no EFA hardware")
    if not outputs:
        return not_run(evidence, "EFA devices")
    found = [len(output.split()) for output in outputs]
    return (verified if all(found) else failed)(f"EFA devices per node: {found}")


def _transport(evidence: Evidence) -> Finding:
    train = evidence.document("train")
    if not train.get("metrics"):
        return not_run(evidence, "train")
    if evidence.simulated:
        return open_question("the rehearsal cloud has no EFA hardware")
    over_efa = train["metrics"]["over_efa"]["value"] == 1
    return (verified if over_efa else failed)(f"NCCL's channels went through {'EFA' if over_efa else 'TCP'}")


def _all_reduce(evidence: Evidence) -> Finding:
    train = evidence.document("train")
    if train.get("state") != "succeeded":
        return (
            failed(f"{train['state']}: {train.get('reason', '')}") if "state" in train else not_run(evidence, "train")
        )
    value = train["metrics"]["busbw"]["value"]
    return (verified if value else failed)("measured" if evidence.simulated else f"bus bandwidth {value} GB/s")


def _deletion(evidence: Evidence) -> Finding:
    document = evidence.document("down")
    if "left" not in document or "error" in document:
        return not_run(evidence, "down")
    ended = len(document["instances_ended"])
    return failed(str(document["left"][0])) if document["left"] else verified(f"instances terminated: {ended}")


def _ledger(evidence: Evidence) -> Finding:
    up = evidence.document("up")
    rows = [row for row in evidence.document("cost").get("rows", []) if row["cluster"] == up.get("cluster")]
    if not rows or not up.get("nodes"):
        return not_run(evidence, "up" if rows else "cost")
    times = [evidence.instance_times().get(node["instance_id"]) for node in up["nodes"]]
    lives = [
        max(known.terminated_at - known.launched_at, _MINIMUM_BILLED)
        for known in times
        if known and known.launched_at and known.terminated_at
    ]
    if len(lives) < len(times):
        return open_question("EC2 reported no launch or termination time")
    recorded = timedelta(hours=float(Decimal(rows[0]["node_hours"])))
    difference = abs(recorded - sum(lives, timedelta()))
    if difference > _LEDGER_TOLERANCE * len(lives) or rows[0]["open_entries"]:
        return failed(f"the ledger has {recorded}, EC2 {sum(lives, timedelta())}")
    return verified("the ledger agrees with EC2's launch and termination times")


def _final_search(evidence: Evidence) -> Finding:
    document, cluster = evidence.document("final search"), evidence.document("up").get("cluster", "")
    if "clusters" not in document:
        return not_run(evidence, "final search")
    if document["unknown"]:
        return failed(f"{document['unknown'][0]['region']}: {document['unknown'][0]['why']}")
    if any(row["cluster"] == cluster for row in document["clusters"]):
        return failed(f"something with the tag of {cluster} is left")
    return verified(f"{len(document['regions'])} regions and IAM searched: nothing is left")


def _of_cluster(level: str) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """Return the checks that both levels make before and after their own."""
    before = (
        Check(level, "launch", "EC2 launches every node in one fleet request.", _launch),
        Check(level, "host keys", "The console shows the host keys that cloudgpu pins.", _console_fingerprints),
        Check(level, "bootstrap", "The bootstrap finishes on every node.", _bootstrap),
        Check(level, "expiry", "Every node's own timer powers it off after 30 minutes.", _expiry),
        Check(level, "driver", "The NVIDIA driver sees the GPU of every node.", _driver),
    )
    after = (
        Check(level, "deletion", "`down` deletes everything that it finds by tag.", _deletion),
        Check(level, "ledger", "The ledger agrees with EC2's launch and termination times.", _ledger),
        Check(level, "final search", "Nothing with the cluster's tag is left in any enabled region.", _final_search),
    )
    return before, after


_BEFORE_SMOKE, _AFTER_SMOKE = _of_cluster("smoke")
_BEFORE_PAIR, _AFTER_PAIR = _of_cluster("pair")
CHECKS = (
    *FREE_CHECKS,
    *_BEFORE_SMOKE,
    Check("smoke", "container", "The recipe's container runs on the node.", _container),
    Check("smoke", "training", "The recipe trains a neural network on the GPU.", _training),
    *_AFTER_SMOKE,
    *_BEFORE_PAIR,
    Check("pair", "EFA interfaces", "EC2 attaches one EFA interface to every node.", _efa_interfaces),
    Check("pair", "EFA devices", "Every node has an EFA device.", _efa_devices),
    Check("pair", "transport", "NCCL's channels between the nodes use EFA.", _transport),
    Check("pair", "all-reduce", "The all-reduce test of nccl-tests produces correct values.", _all_reduce),
    *_AFTER_PAIR,
)
"""All checks, by level, in the order of the report."""


def checks_of(level: str) -> tuple[Check, ...]:
    """Return the checks of a level."""
    return tuple(check for check in CHECKS if check.level == LEVELS[level].name)
