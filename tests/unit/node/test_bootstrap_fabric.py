"""The fabric step on NVSwitch nodes, with a real CUDA library whose `cuInit` fails until Fabric Manager runs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.node.bootstrap import NodeKind, bootstrap_script
from tests.unit.node.bootstrap_machine import Machine, machine, took
from tests.unit.node.test_bootstrap import B200, V100

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
A100 = NodeKind("A100", "Ampere")
SOURCE = '#include <unistd.h>\nint cuInit(unsigned flags) { return access("%s", F_OK) ? 802 : 0; }\n'
DRIVER = "580.126.20"


def nvswitch_node(machine: Machine, monkeypatch, *, manager: str, starts: bool = True) -> Path:
    """Give the node a driver that works, and CUDA that works once Fabric Manager was started."""
    root = machine.root.parent
    running = root / "fabric-manager-runs"
    (root / "cuda.c").write_text(SOURCE % running)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", root / "libcuda.so.1", root / "cuda.c"], check=True)
    environment = Machine.environment.fget(machine) | {"LD_LIBRARY_PATH": str(root)}
    monkeypatch.setattr(Machine, "environment", environment)
    machine.stand_in("python3", f'exec {sys.executable} "$@"')
    machine.stand_in("nvidia-smi", f'case "$*" in *query*) echo {DRIVER}; echo {DRIVER};; esac')
    if manager:
        machine.stand_in("nv-fabricmanager", f"printf '\\n\\tFabric Manager version is : {manager}\\n\\n'")
    start = f"touch {running}" if starts else "exit 1"
    machine.stand_in("systemctl", f"case $1 in restart|start) {start};; is-enabled) exit 1;; esac")
    machine.stand_in("journalctl", "echo 'no NVSwitch devices found'")
    return running


@pytest.mark.parametrize("kind", [A100, B200], ids=["A100", "B200"])
def test_fabric_manager_is_started_until_cuda_initializes(machine: Machine, monkeypatch, kind: NodeKind) -> None:
    nvswitch_node(machine, monkeypatch, manager=DRIVER)
    code, state = machine.boot(bootstrap_script(kind))
    assert (code, state["state"], took(state)["fabric"]) == (0, "done", "done")
    assert "systemctl enable nvidia-fabricmanager" in machine.called()


def test_running_fabric_manager_is_left_alone(machine: Machine, monkeypatch) -> None:
    nvswitch_node(machine, monkeypatch, manager="").touch()
    _, state = machine.boot(bootstrap_script(A100))
    assert (state["state"], took(state)["fabric"]) == ("done", "skipped")


@pytest.mark.parametrize(("manager", "shown"), [("580.173.02", "580.173.02"), ("", "(missing)")])
def test_fabric_manager_of_another_version_fails_the_bootstrap(
    machine: Machine, monkeypatch, manager: str, shown: str
) -> None:
    nvswitch_node(machine, monkeypatch, manager=manager)
    code, state = machine.boot(bootstrap_script(A100))
    assert (code, state["step"]) == (1, "fabric")
    assert state["error"] == f"CUDA does not initialize: Fabric Manager {shown} does not match driver {DRIVER}"


def test_fabric_manager_that_does_not_start_fails_the_bootstrap(machine: Machine, monkeypatch) -> None:
    nvswitch_node(machine, monkeypatch, manager=DRIVER, starts=False)
    code, state = machine.boot(bootstrap_script(A100))
    assert (code, state["step"]) == (1, "fabric")
    assert state["error"] == "CUDA does not initialize: error 802; Fabric Manager: no NVSwitch devices found"


def test_node_without_nvswitch_has_no_fabric_step() -> None:
    assert "step fabric" not in bootstrap_script(V100)
