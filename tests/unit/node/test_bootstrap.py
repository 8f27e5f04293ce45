"""The script's text, and the script itself with stand-ins for every command that would change the machine."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from cloudgpu.node.bootstrap import script

GOLDEN = Path(__file__).parent / "golden"
CASES = {"v100_efa": ("V100", True), "b200": ("B200", False), "a100_efa": ("A100", True), "bare": ("", False)}
REAL = (
    "sh",
    "mkdir",
    "date",
    "tail",
    "tr",
    "cut",
    "mv",
    "sleep",
    "cat",
    "grep",
    "rm",
    "mktemp",
    "touch",
    "tar",
    "gzip",
)


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    gpu, efa = CASES[name]
    expected = GOLDEN / f"bootstrap_{name}.sh"
    assert script(gpu=gpu, efa=efa) == expected.read_text(), f"write the new text to {expected} if it is meant"


@pytest.mark.parametrize("name", CASES)
def test_it_is_shell(name: str) -> None:
    gpu, efa = CASES[name]
    text = script(gpu=gpu, efa=efa)
    subprocess.run(["sh", "-n"], input=text.encode(), check=True)
    assert len(text) < 12_000  # user data ends at 16 KiB, and the expiry comes first


class Machine:
    """A root directory and a PATH on which every command is a stand-in that notes its call."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.calls = root / "root", root / "bin", root / "calls"
        self.root.mkdir()
        self.bin.mkdir()
        for name in REAL:
            (self.bin / name).symlink_to(shutil.which(name))
        for name in ("systemctl", "apt-get", "apt-mark", "modprobe", "curl", "gpg"):
            self.stand_in(name)
        self.stand_in("uname", "echo 6.8.0-1024-aws")
        self.stand_in("apt-cache")
        self.stand_in("python3")
        # The driver's tool works only once the module was loaded.
        self.stand_in("nvidia-smi", f"[ -e {root}/driver ]")
        self.stand_in("modprobe", f"touch {root}/driver")

    def stand_in(self, name: str, body: str = "exit 0") -> None:
        (self.bin / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{self.calls}\n{body}\n')
        (self.bin / name).chmod(0o755)

    def boot(self, text: str) -> tuple[int, dict]:
        environment = {"PATH": str(self.bin), "CLOUDGPU_NODE_ROOT": str(self.root), "CLOUDGPU_RETRY_S": "0"}
        done = subprocess.run([str(self.bin / "sh")], input=text.encode(), env=environment, check=False, timeout=60)
        return done.returncode, json.loads((self.root / "var/lib/cloudgpu/bootstrap.json").read_text())

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_plain_v100_node(machine: Machine) -> None:
    code, state = machine.boot(script(gpu="V100", efa=False))
    assert (code, state["state"]) == (0, "done")
    assert [step["name"] for step in state["steps"]] == ["quiet", "python", "driver"]
    calls = machine.called()
    (install,) = [call for call in calls if call.startswith("apt-get") and " install " in call]
    assert "linux-modules-nvidia-580-server-6.8.0-1024-aws nvidia-" in install
    assert "-open" not in "".join(calls)
    assert "fabricmanager" not in "".join(calls)
    (hold,) = [call for call in calls if call.startswith("apt-mark hold")]
    assert hold.split("hold ")[1] in install
    # Before anything is installed, nothing may upgrade in the background.
    assert calls.index(install) > next(i for i, call in enumerate(calls) if "mask unattended-upgrades" in call)


def test_blackwell_gets_open_modules(machine: Machine) -> None:
    machine.boot(script(gpu="B200", efa=False))
    assert "linux-modules-nvidia-580-server-open-6.8.0" in machine.calls.read_text()


def test_modules_are_built_where_none_are_prebuilt(machine: Machine) -> None:
    machine.stand_in("apt-cache", "exit 100")
    machine.boot(script(gpu="V100", efa=False))
    assert "linux-headers-6.8.0-1024-aws nvidia-dkms-580-server " in machine.calls.read_text()


def test_a_working_driver_is_left_alone(machine: Machine) -> None:
    machine.stand_in("nvidia-smi")
    code, state = machine.boot(script(gpu="A100", efa=False))
    assert (code, state["state"]) == (0, "done")
    assert "apt-get" not in machine.calls.read_text()


def test_a_failing_step_is_named_with_its_last_words(machine: Machine) -> None:
    machine.stand_in("modprobe", 'echo "modprobe: ERROR: could not insert \\"nvidia\\": No such device" >&2; exit 1')
    code, state = machine.boot(script(gpu="V100", efa=True))
    assert code == 1
    assert (state["state"], state["step"]) == ("failed", "driver")
    assert "No such device" in state["error"]
    assert [step["name"] for step in state["steps"]] == ["quiet", "python", "driver"]


def test_packages_are_tried_again(machine: Machine) -> None:
    machine.stand_in(
        "apt-get",
        f'case "$*" in *install*) echo x >>{machine.root}/n; [ $(cat {machine.root}/n | tr -d "\\n") = xx ];; esac',
    )
    code, _ = machine.boot(script(gpu="V100", efa=False))
    assert code == 0
    machine.stand_in("apt-get", 'case "$*" in *install*) exit 100;; esac')
    (machine.root.parent / "driver").unlink()
    code, state = machine.boot(script(gpu="V100", efa=False))
    assert (code, state["state"], state["step"]) == (1, "failed", "driver")
    assert state["error"].startswith("cannot install: linux-modules")


def test_efa_signed_by_somebody_else_is_not_installed(machine: Machine) -> None:
    machine.stand_in("gpg", "echo '[GNUPG:] VALIDSIG 0000 2026-01-01 0 0 4 0 1 10 00 0000' >&3 2>/dev/null || true")
    code, state = machine.boot(script(gpu="", efa=True))
    assert (code, state["step"]) == (1, "efa")
    assert "not signed" in state["error"]


def test_efa_is_installed_after_its_signature_was_checked(machine: Machine) -> None:
    machine.stand_in("gpg", "case $* in *verify*) echo '[GNUPG:] VALIDSIG AA 2026-01-01 1 0 4 0 1 10 00 "
                     "4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC' >&3;; esac")  # fmt: skip
    installer = "aws-efa-installer/efa_installer.sh"
    unpack = (
        "mkdir aws-efa-installer; "
        f"printf '#!/bin/sh\\necho installer $* >>{machine.calls}\\n' >{installer}; chmod +x {installer}"
    )
    (machine.bin / "tar").unlink()
    (machine.bin / "chmod").symlink_to(shutil.which("chmod"))
    machine.stand_in("tar", unpack)
    code, state = machine.boot(script(gpu="", efa=True))
    assert (code, state["state"]) == (0, "done")
    assert "installer -y --minimal" in machine.called()


def test_running_it_again_is_harmless(machine: Machine) -> None:
    text = script(gpu="V100", efa=False)
    machine.boot(text)
    before = len(machine.called())
    code, state = machine.boot(text)
    assert (code, state["state"]) == (0, "done")
    assert not any(" install " in call for call in machine.called()[before:])


def test_nothing_is_written_outside_the_prefix(machine: Machine) -> None:
    machine.boot(script(gpu="V100", efa=False))
    files = {str(path.relative_to(machine.root)) for path in machine.root.rglob("*") if path.is_file()}
    assert files == {"var/lib/cloudgpu/bootstrap.json", "var/lib/cloudgpu/bootstrap.log"}
