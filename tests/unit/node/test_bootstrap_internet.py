"""The bootstrap waits for internet access before it installs packages, and only then."""

import pytest

from cloudgpu.node.bootstrap import NodeKind, bootstrap_script
from tests.unit.node.bootstrap_machine import Machine, machine, took

__all__ = ["machine"]
PDSH = NodeKind("", "", pdsh=True)
LOCAL = "Get:1 file:/var/cuda-repo-ubuntu2204-13-0-local  InRelease [1,572 B]"


def archive_after(machine: Machine, tries: int) -> None:
    """Let `apt-get update` reach the archive after some tries. It never fails, like the real one."""
    count = machine.root / "updates"
    told = machine.state / "bootstrap.json"
    machine.stand_in(
        "apt-get",
        f'case $* in *update*) cat {told} >>{machine.root}/told; echo x >>{count}; echo "{LOCAL}"\n'
        f'[ "$(grep -c x {count})" -le {tries} ] || echo "Hit:2 http://archive.ubuntu.com/ubuntu jammy InRelease" ;;\n'
        f"*install*) printf '#!/bin/sh\\n' >{machine.bin}/pdsh; chmod 755 {machine.bin}/pdsh ;; esac",
    )


def test_packages_are_installed_only_after_the_archive_is_reachable(machine: Machine, monkeypatch) -> None:
    monkeypatch.setattr(Machine, "environment", Machine.environment.fget(machine) | {"CLOUDGPU_ONLINE_S": "300"})
    machine.stand_in("sleep")
    archive_after(machine, tries=2)
    _, state = machine.boot(bootstrap_script(PDSH))
    assert (state["state"], took(state)["pdsh"]) == ("done", "done")
    calls = [call for call in machine.called() if call.startswith("apt-get")]
    assert [" update" in call for call in calls[:3]] == [True] * 3
    assert '"step":"pdsh (waiting for internet access)"' in (machine.root / "told").read_text()


def test_node_without_internet_access_fails_by_name(machine: Machine) -> None:
    archive_after(machine, tries=1000)
    code, state = machine.boot(bootstrap_script(PDSH))
    assert (code, state["step"]) == (1, "pdsh")
    assert state["error"] == "no internet access after 0 s: check the subnet's route and the node's public address"
    assert machine.installs() == []


def test_node_that_installs_nothing_needs_no_internet_access(machine: Machine) -> None:
    archive_after(machine, tries=1000)
    machine.stand_in("pdsh")
    code, _ = machine.boot(bootstrap_script(PDSH))
    assert code == 0
    assert not any(call.startswith("apt-get") for call in machine.called())


@pytest.mark.parametrize("name", ["refresh", "packages", "fetch"])
def test_every_download_waits_for_internet_access(name: str) -> None:
    body = bootstrap_script(PDSH).partition(f"\n{name}() {{\n")[2].partition("\n}\n")[0]
    assert body.splitlines()[0].strip() == "online"
