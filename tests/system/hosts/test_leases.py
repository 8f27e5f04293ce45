"""Leases on hosts: all hosts or none, expiry without the caller, and accurate reports from `down`."""

import json
import shutil
import time
from pathlib import Path

from cloudgpu.node.payload import agent_source
from tests.hosts.lab import Host, Lab
from tests.system.hosts.callers import Caller, leftovers

ONE = ("--set", "resources.nodes=1", "--set", "resources.pool=dgx")
LATE = """
import subprocess
from cloudgpu.cli.planning import plan_recipe
from cloudgpu.cli.planning import requester
from cloudgpu.cli.context import command_context
from cloudgpu.errors import CapacityError

context = command_context(target="ssh")
plan = plan_recipe(context, "tiny", [], offline=False).plan
# Between the plan and the lease, another user leases the second host.
subprocess.run({theirs!r}, check=True, cwd={folder!r}, env={env!r}, stdout=subprocess.DEVNULL)
try:
    context.backend_context().clusters.create(plan, "late", requester(context))
except CapacityError as err:
    print(err.code, err.message)
"""


def ask(host: Host, verb: str, request: dict[str, object], user: str = "lab") -> dict[str, object]:
    """Return the response of the agent on a host to one of its users."""
    (host.folder / "tmp/agent.py").write_bytes(agent_source())
    (host.folder / "tmp/request.json").write_text(json.dumps(request))
    line = f"PATH=/run/host/bin:/usr/bin:/bin python3 /tmp/agent.py {verb} </tmp/request.json"
    done = host.run(["sh", "-c", line], user=user, check=False)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_lease_takes_all_hosts_or_none(lea: Caller, ana: Caller, lab_hosts: Lab):
    ana.write_inventory(only=("blue",))
    theirs = ana.argv("up", "tiny", "--on", "ssh", "--name", "quick", "--yes", *ONE)
    done = lea.script(LATE.format(theirs=theirs, folder=str(ana.folder), env=ana.environment()))
    code, _, said = done.stdout.strip().splitlines()[-1].partition(" ")
    assert (code, "0 of 8 GPUs are free" in said, "by ana" in said) == ("leased", True, True), done.stderr
    assert leftovers(lab_hosts["red"]) == []
    assert lea.json("status")["clusters"] == []
    rows = lea.run("cost", "--by", "cluster").stdout
    assert "$0.00" in rows or "late" not in rows
    ana.run("down", "quick")


def test_lease_expires_without_caller_and_ends_processes(lab_hosts: Lab):
    red = lab_hosts["red"]
    home = "/home/" + "lab/.cloudgpu/hosts/short-0123abcd"
    take = {"action": "take", "token": "0123abcd", "cluster": "short", "owner": "lea", "gpus": 8, "home": home}
    assert ask(red, "lease", {**take, "expires_epoch_s": int(time.time()) + 60})["devices"] == list(range(8))
    run_dir = f"{home}/.cloudgpu/runs/r1"
    rank = {"rank": 0, "local_rank": 0, "argv": ["sh", "-c", "sleep 1000 & wait"], "env": {"CLOUDGPU_RUN_ID": "r1"}}
    red.run(["mkdir", "-p", f"{run_dir}/work"], user="lab")
    started = {"run_id": "r1", "run_dir": run_dir, "workdir": f"{run_dir}/work", "node_index": 0, "ranks": [rank]}
    assert ask(red, "start", started)["state"] in ("starting", "running")
    # The caller has exited. Another user can neither take the lease nor end it.
    refused = ask(red, "lease", {**take, "token": "ffff", "owner": "ana", "expires_epoch_s": 0}, user="ana")
    assert refused["code"] == "leased"
    soon = {"action": "extend", "token": "0123abcd", "home": home, "expires_epoch_s": int(time.time())}
    assert ask(red, "lease", soon, user="ana")["code"] == "no-lease"
    ask(red, "lease", soon)
    deadline = time.monotonic() + 60
    while list((red.folder / "vartmp").rglob("lease-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list((red.folder / "vartmp").rglob("lease-*"))
    assert "sleep 1000" not in red.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"], check=False).stdout
    assert ask(red, "leave", {"cluster": "short", "owner": "lea"})["left"] == []


def test_down_releases_lease_of_killed_up(lea: Caller, lab_hosts: Lab):
    dies = "import os, sys\nfrom cloudgpu.backends.hosts import billing\nfrom cloudgpu.cli.main import main\n"
    dies += "billing.start_billing = lambda *_: os._exit(9)\n"
    done = lea.script(f"{dies}main({['up', 'tiny', '--on', 'ssh', '--name', 'cut', '--yes', *ONE]!r})")
    assert done.returncode == 9
    assert list((lab_hosts["red"].folder / "vartmp").rglob("lease-*"))
    ended = lea.json("down", "cut")
    assert (ended["known"], ended["instances_ended"]) == (True, ["red"])


def test_down_does_not_report_unreachable_host_as_deleted(lea: Caller, lab_hosts: Lab):
    blue = lab_hosts["blue"]
    lea.run("up", "tiny", "--on", "ssh", "--name", "pair", "--yes")
    blue.link("down")
    try:
        failed = lea.json("down", "pair", code=6)
        assert failed["error"]["details"][0].startswith("blue could not be queried: ")
        assert len(failed["error"]["details"]) == 1
        assert lea.json("status")["clusters"][0]["state"] == "ending"
    finally:
        blue.link("up")
    assert lea.json("down", "pair")["instances_ended"] == ["red", "blue"]


def test_down_releases_lease_after_cluster_record_is_lost(lea: Caller, lab_hosts: Lab):
    lea.run("up", "tiny", "--on", "ssh", "--name", "forgotten", "--yes", *ONE)
    shutil.rmtree(lea.home / "clusters/forgotten")
    ended = lea.json("down", "forgotten", "--on", "ssh")
    assert (ended["known"], ended["strays_ended"]) == (False, ["red"])


def test_down_without_node_inventory_queries_every_recorded_host(lea: Caller, lab_hosts: Lab):
    """Without the inventory file, down queries the hosts in the cluster record and reports those it cannot query."""
    lea.run("up", "tiny", "--on", "ssh", "--name", "nameless", "--yes", *ONE)
    (lea.home / "clusters/nameless/inventory.json").unlink()
    lea.write_inventory(only=("blue",))
    failed = lea.json("down", "nameless", code=6)
    assert failed["error"]["details"] == ["red could not be queried: it is not in the inventory"]
    assert leftovers(lab_hosts["red"]) != []
    lea.write_inventory()
    assert lea.json("down", "nameless")["instances_ended"] == ["red"]


def test_extend_moves_lease_expiry(lea: Caller, lab_hosts: Lab):
    lea.run("up", "tiny", "--on", "ssh", "--name", "longer", "--yes", *ONE)
    record = next((lab_hosts["red"].folder / "vartmp").rglob("lease-*"))
    before = json.loads(record.read_text())["expires_epoch_s"]
    lea.run("extend", "longer", "--by", "1h")
    assert json.loads(record.read_text())["expires_epoch_s"] == before + 3600
    lea.run("down", "longer")
    assert not Path(record).exists()
