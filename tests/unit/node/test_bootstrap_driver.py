"""The driver step with the real apt and an archive that has the dependencies of Ubuntu's packages."""

import shutil
from pathlib import Path

import pytest

from cloudgpu.node.bootstrap import NodeKind, bootstrap_script
from tests.unit.node.bootstrap_machine import Machine, machine, took
from tests.unit.node.test_bootstrap import B200, V100
from tests.unit.node.ubuntu_archive import KERNEL, Apt, Packages, archive, fabric_manager, kernel_packages, libraries

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt")
OLD, NEW = "580.126.09", "580.126.20"
A100 = NodeKind("A100", "Ampere", driver_branch=580)
FAILING = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


def boot(machine: Machine, apt: Apt, kind: NodeKind, modules: str = OLD) -> dict:
    """Boot a node without a driver. Its nvidia-smi fails if module and libraries have different versions."""
    for program in ("apt-get", "apt-cache"):
        machine.stand_in(program, apt.script(program))
    installs = apt.root / "installs"
    version = rf"sed -n 's/^Inst %s (\([0-9.]*\)-.*/\1/p' {installs}"
    machine.stand_in(
        "nvidia-smi",
        f"[ -e {machine.root.parent}/driver ] || exit 127\n"
        f"module=$({version % 'nvidia-dkms-580-server[-open]*'}); library=$({version % 'nvidia-utils-580-server'})\n"
        f'[ "${{module:-{modules}}}" = "$library" ] || {{\n'
        'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18; }',
    )
    return machine.boot(bootstrap_script(kind))[1]


@pytest.mark.parametrize(("kind", "flavour"), [(V100, ""), (B200, "-open")], ids=["proprietary", "open"])
@pytest.mark.parametrize("newest", [OLD, NEW], ids=["equal", "newer"])
def test_driver_modules_have_the_version_of_the_libraries(
    machine: Machine, tmp_path: Path, kind: NodeKind, flavour: str, newest: str
) -> None:
    with archive(tmp_path / "apt", kernel_packages(OLD), libraries(newest), fabric_manager(newest)) as apt:
        state = boot(machine, apt, kind)
    assert (state["state"], state["error"]) == ("done", "")
    installed = apt.installed()
    built = {f"nvidia-dkms-580-server{flavour}", f"linux-headers-{KERNEL}"} & set(installed)
    prebuilt = f"linux-modules-nvidia-580-server{flavour}-{KERNEL}" in installed
    assert (len(built), prebuilt) == ((0, True) if newest == OLD else (2, False))
    assert installed["nvidia-utils-580-server"].startswith(newest)


def test_modules_that_cannot_be_installed_are_built_on_the_node(machine: Machine, tmp_path: Path) -> None:
    kernel = {key: depends for key, depends in kernel_packages(NEW).items() if "linux-objects" not in key[0]}
    with archive(tmp_path / "apt", kernel, libraries(NEW)) as apt:
        state = boot(machine, apt, V100)
    assert (state["state"], "nvidia-dkms-580-server" in apt.installed()) == ("done", True)


def test_fabric_manager_gets_the_version_of_the_driver(machine: Machine, tmp_path: Path) -> None:
    versions = fabric_manager("580.126.2", NEW, "580.173.02")
    with archive(tmp_path / "apt", kernel_packages(OLD), libraries(NEW), versions) as apt:
        state = boot(machine, apt, A100)
    assert (state["state"], apt.installed()["nvidia-fabricmanager-580"]) == ("done", f"{NEW}-1")


def test_driver_without_matching_fabric_manager_is_not_installed(machine: Machine, tmp_path: Path) -> None:
    parts: tuple[Packages, ...] = (kernel_packages(OLD), libraries(NEW), fabric_manager("580.173.02"))
    with archive(tmp_path / "apt", *parts) as apt:
        state = boot(machine, apt, A100)
    assert (state["state"], state["step"]) == ("failed", "driver")
    assert state["error"] == f"the archive has no nvidia-fabricmanager-580 of version {NEW}, which the driver requires"
    assert not (apt.root / "installs").exists()


def image_driver(machine: Machine, works_after: int, version: str = NEW) -> None:
    """Give the image a driver whose nvidia-smi fails for the first calls."""
    machine.stand_in("modinfo", f'[ "$*" = nvidia ] && echo "version: {version}"')
    machine.stand_in(
        "nvidia-smi",
        f'echo x >>{machine.root}/smi; [ "$(grep -c x {machine.root}/smi)" -gt {works_after} ] || '
        f"{{ printf '{FAILING}\\n\\n'; exit 9; }}".replace("couldn't", "could not"),
    )


def test_driver_of_the_image_is_waited_for_and_not_replaced(machine: Machine, monkeypatch) -> None:
    monkeypatch.setattr(Machine, "environment", Machine.environment.fget(machine) | {"CLOUDGPU_DRIVER_S": "300"})
    machine.stand_in("sleep")
    image_driver(machine, works_after=3)
    code, state = machine.boot(bootstrap_script(V100))
    assert (code, took(state)["driver"]) == (0, "done")
    assert machine.installs() == []


@pytest.mark.parametrize("known", ["module", "program"])
def test_broken_driver_of_the_image_fails_by_name_and_is_not_replaced(machine: Machine, known: str) -> None:
    image_driver(machine, works_after=1000)
    if known == "program":
        machine.stand_in("modinfo", "exit 1")
    code, state = machine.boot(bootstrap_script(V100))
    assert (code, state["step"]) == (1, "driver")
    assert state["error"].startswith("the installed driver does not work after 0 s: NVIDIA-SMI has failed")
    assert machine.installs() == []


def test_interrupted_driver_installation_is_continued_instead_of_waited_for(machine: Machine) -> None:
    machine.stand_in("sleep")
    image_driver(machine, works_after=2)
    machine.state.mkdir(parents=True)
    (machine.state / "driver-incomplete").touch()
    _, state = machine.boot(bootstrap_script(V100))
    assert (state["state"], len(machine.installs())) == ("done", 1)
    assert not (machine.state / "driver-incomplete").exists()
