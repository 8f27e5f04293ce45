"""Instance store disks that the machine image combines in a service of its own."""

import pytest

from cloudgpu.node.bootstrap import NodeKind, bootstrap_script
from tests.unit.node.bootstrap_machine import Machine, machine, took
from tests.unit.node.test_bootstrap import BARE

__all__ = ["machine"]
CHANGES = ("mdadm", "mkfs", "mount ")


def changes(machine: Machine) -> list[str]:
    return [call for call in machine.called() if call.startswith(CHANGES)]


def test_disks_that_the_image_combines_later_are_not_formatted(machine: Machine) -> None:
    """AWS's image creates a volume with LVM in dlami-nvme.service, which may run at the same time as the bootstrap."""
    machine.disks("nvme1n1", "nvme2n1")
    mounted = f"/dev/mapper/vg.01-lv_ephemeral {machine.root}/opt/dlami/nvme ext4 rw 0 0"
    combine = f"echo '{mounted}' >>{machine.root}/proc/mounts"
    machine.stand_in(
        "systemctl",
        'case "$*" in "is-enabled dlami-nvme.service") ;; *is-enabled*) exit 1;; '
        f'"start dlami-nvme.service") {combine};; esac',
    )
    _, state = machine.boot(bootstrap_script(BARE))
    assert took(state)["store"] == "done"
    assert changes(machine) == []
    assert (machine.root / "mnt/cloudgpu").readlink() == machine.root / "opt/dlami/nvme"


@pytest.mark.parametrize(
    "found",
    ["TYPE=LVM2_member", "LABEL=nvme-ephemeral\nTYPE=xfs", "PTTYPE=gpt", "LABEL=host:0\nTYPE=linux_raid_member"],
)
def test_disks_with_unknown_contents_are_left_untouched(machine: Machine, found: str) -> None:
    machine.disks("nvme1n1", "nvme2n1")
    machine.stand_in("blkid", f'case "$*" in *nvme2n1) printf "{found}\\n";; *) exit 2;; esac')
    _, state = machine.boot(bootstrap_script(BARE))
    assert (state["state"], took(state)["store"]) == ("done", "skipped")
    assert changes(machine) == []


@pytest.mark.parametrize("code", [4, 8])
def test_disks_that_cannot_be_read_are_left_untouched(machine: Machine, code: int) -> None:
    machine.disks("nvme1n1")
    machine.stand_in("blkid", f"exit {code}")
    _, state = machine.boot(bootstrap_script(BARE))
    assert (took(state)["store"], changes(machine)) == ("skipped", [])


def test_own_array_is_assembled_again_after_a_reboot(machine: Machine) -> None:
    machine.disks("nvme1n1", "nvme2n1")
    machine.stand_in("blkid", 'case "$*" in *export*) printf "LABEL=any:cloudgpu\\nTYPE=linux_raid_member\\n";; esac')
    _, state = machine.boot(bootstrap_script(NodeKind("", "")))
    assert took(state)["store"] == "done"
    assert any(call.startswith("mdadm --assemble /dev/md/cloudgpu") for call in changes(machine))
