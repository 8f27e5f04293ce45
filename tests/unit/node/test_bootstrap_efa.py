"""The steps of the bootstrap for EFA: installer, NCCL plugin, kernel module, and copies between the ranks of a node."""

import pytest

from cloudgpu.node.bootstrap import NodeKind, bootstrap_script
from tests.unit.node.bootstrap_machine import LISTED, Machine, machine

__all__ = ["machine"]


def test_efa_installer_with_wrong_signature_is_rejected(machine: Machine) -> None:
    machine.stand_in("gpg", "echo '[GNUPG:] VALIDSIG 0000 2026-01-01 0 0 4 0 1 10 00 0000' >&3 2>/dev/null || true")
    code, state = machine.boot(bootstrap_script(NodeKind("", "", efa=True)))
    assert (code, state["step"]) == (1, "efa")
    assert "not signed" in state["error"]


NGC_VARIANT = "\tlibnccl-net-ofi.so (libc6,x86-64) => /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"


def install_efa(machine: Machine, *, containers: bool, plugins: str) -> tuple[int, dict]:
    """Run the efa step with a stand-in installer, and a loader that finds these plugins once they are installed."""
    signed = "[GNUPG:] VALIDSIG AA 2026-01-01 1 0 4 0 1 10 00 4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC"
    machine.stand_in("gpg", f"case $* in *verify*) echo '{signed}' >&3;; esac")
    installer = "aws-efa-installer/efa_installer.sh"
    there = machine.root / "opt/amazon/efa_installed_packages"
    machine.stand_in(
        "tar",
        f"mkdir aws-efa-installer; printf '#!/bin/sh\\necho installer $* >>{machine.calls}\\nmkdir -p {there.parent}\\n"
        f"touch {there}\\n' >{installer}; chmod +x {installer}",
    )
    machine.stand_in("ldconfig", f"[ ! -e {there} ] || echo '{plugins}'")
    own = bootstrap_script(NodeKind("", "", efa=True))
    (setting,) = [
        line
        for line in bootstrap_script(NodeKind("", "", efa=True, containers=containers)).splitlines()
        if line.startswith("efa_options=")
    ]
    own = own.replace("step efa_plugin\n", "") if containers else own
    return machine.boot(own.replace("efa_options='-y'", setting))


def test_efa_is_installed_with_its_nccl_plugin_where_ranks_run_without_a_container(machine: Machine) -> None:
    code, state = install_efa(machine, containers=False, plugins=LISTED)
    assert (code, state["state"]) == (0, "done"), state
    assert "installer -y" in machine.called()
    assert any("aws-efa-installer-1.50.0.tar.gz" in call for call in machine.called())


@pytest.mark.parametrize("plugins", ["", NGC_VARIANT])
def test_plugin_that_nccl_does_not_load_by_itself_fails_the_efa_step(machine: Machine, plugins: str) -> None:
    code, state = install_efa(machine, containers=False, plugins=plugins)
    assert (code, state["step"]) == (1, "efa_plugin")
    assert "no libnccl-net.so" in state["error"]


def test_efa_on_a_node_for_containers_is_installed_without_the_plugin(machine: Machine) -> None:
    install_efa(machine, containers=True, plugins="")
    assert "installer -y --minimal" in machine.called()


VENDOR = "opt/amazon/efa_installed_packages"
OUTSIDE_CACHE = "opt/amazon/ofi-nccl/lib/libnccl-net.so"


def boot_vendor_image(machine: Machine, plugin: str = OUTSIDE_CACHE) -> tuple[int, dict]:
    """Boot an image that has EFA. The loader finds NCCL's plugin where ld.so.conf.d names its folder."""
    machine.write(VENDOR, "")
    if plugin:
        machine.write(plugin, "")
    listed = machine.root / "etc/ld.so.conf.d/cloudgpu-ofi-nccl.conf"
    machine.stand_in("ldconfig", f"[ ! -e {listed} ] || echo '{LISTED}'")
    machine.stand_in("gpg", "exit 1")  # only a node that runs the installer comes here
    return machine.boot(bootstrap_script(NodeKind("", "", efa=True)))


def test_vendor_image_gets_its_nccl_plugin_into_the_loaders_path(machine: Machine) -> None:
    code, state = boot_vendor_image(machine)
    assert (code, state["state"]) == (0, "done"), state
    named = (machine.root / "etc/ld.so.conf.d/cloudgpu-ofi-nccl.conf").read_text()
    assert named == "/opt/amazon/ofi-nccl/lib\n"
    assert not any("aws-efa-installer" in call for call in machine.called())


def test_vendor_image_without_nccl_plugin_runs_the_installer(machine: Machine) -> None:
    code, state = boot_vendor_image(machine, plugin="")
    assert (code, state["step"]) == (1, "efa_plugin")
    assert any("aws-efa-installer-1.50.0.tar.gz" in call for call in machine.called())


def load_module(machine: Machine, version: str) -> None:
    machine.write("sys/module/efa/version", f"{version}\n")
    machine.stand_in("modinfo", "case $* in *efa*) echo 3.0.0g;; *) exit 1;; esac")


def test_old_efa_module_that_is_still_loaded_needs_a_reboot(machine: Machine) -> None:
    load_module(machine, "2.1.0g")
    code, state = boot_vendor_image(machine)
    assert (code, state["state"], state["step"]) == (0, "rebooting", "efa")
    load_module(machine, "3.0.0g")
    code, state = boot_vendor_image(machine)
    assert (code, state["state"]) == (0, "done"), state


def test_module_that_the_installer_could_not_unload_needs_a_reboot(machine: Machine) -> None:
    load_module(machine, "2.1.0g")
    code, state = install_efa(machine, containers=False, plugins=LISTED)
    assert (code, state["state"]) == (0, "rebooting"), state
    assert "installer -y" in machine.called()


def test_ranks_of_a_node_with_efa_may_read_each_others_memory(machine: Machine) -> None:
    machine.stand_in("sysctl")
    code, state = boot_vendor_image(machine)
    assert (code, state["state"]) == (0, "done"), state
    assert "sysctl -w kernel.yama.ptrace_scope=0" in machine.called()
    assert (machine.root / "etc/sysctl.d/90-cloudgpu.conf").read_text() == "kernel.yama.ptrace_scope=0\n"
