"""The bootstrap script: its text, and its execution with stub commands."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.catalog import load
from cloudgpu.catalog.catalog import driver_for, image_for
from cloudgpu.node.boot_mounts import Mount, volume_device_path
from cloudgpu.node.bootstrap import NodeKind, bootstrap_script, image_cleanup_script, pack_script, without_comments
from gpu_cluster.user_data import user_data
from tests.unit.node.bootstrap_machine import LISTED, ONLINE, Machine, machine, took

__all__ = ["machine"]
V100 = NodeKind("V100", "Volta")
B200 = NodeKind("B200", "Blackwell")
BARE = NodeKind("", "")
FSX = "fs-0a1b2c3d4e5f60718.fsx.us-east-1.amazonaws.com"
SETS = Mount("sets", "lustre", "/data/sets", FSX, "us-east-1", read_only=True, mount_name="abcdefgh")
HOMES = Mount("team-homes", "efs", "/team/homes of all", "fs-0aa.efs.us-east-1.amazonaws.com", "us-east-1")
DISK = Mount("disk", "ebs", "/data/disk", "vol-0a1b2c3d4e5f60718", "us-east-1")
LOGS = Mount("logs", "s3", "/logs", "cloudgpu-logs-1a2b3c4d", "us-east-1")
IMAGES = Mount("images", "s3", "/images", "cloudgpu-images-1a2b3c4d", "us-east-1", read_only=True)
EDITED = Mount("edited", "s3", "/edited", "cloudgpu-edited-1a2b3c4d", "us-east-1", client="s3fs")
CASES = {
    "volta_efa_lustre": NodeKind("V100", "Volta", efa=True, mounts=(SETS, HOMES)),
    "bare_disk_and_buckets": NodeKind("", "", mounts=(DISK, LOGS, IMAGES, EDITED)),
    "turing_containers": NodeKind("T4", "Turing", containers=True),
    "ampere_efa": NodeKind("A100", "Ampere", efa=True, pdsh=True),
    "hopper_efa_containers": NodeKind("H100", "Hopper", efa=True, containers=True),
    "blackwell": B200,
    "bare": BARE,
}


@pytest.mark.parametrize("name", CASES)
def test_bootstrap_script_has_valid_shell_syntax(name: str) -> None:
    for text in (bootstrap_script(CASES[name]), pack_script(bootstrap_script(CASES[name]))):
        subprocess.run(["sh", "-n"], input=text.encode(), check=True)


def test_largest_bootstrap_script_fits_into_user_data() -> None:
    """The program rejects more than 16 KiB; a quarter is reserved for future additions."""
    most = pack_script(
        bootstrap_script(NodeKind("H100", "Hopper", efa=True, containers=True, mounts=(SETS, HOMES, DISK, EDITED)))
    )
    assert len(user_data(datetime(2026, 11, 21, tzinfo=UTC), most)) < 12_288


def test_packing_the_same_script_is_deterministic() -> None:
    assert pack_script(bootstrap_script(V100)) == pack_script(bootstrap_script(V100))


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_packed_script_unpacks_to_the_original_without_comments(text: str) -> None:
    lines = pack_script(text).split("PACKED'", 1)[1].split("\nPACKED\n")[0].split("\n", 1)[1]
    done = subprocess.run(["sh", "-c", "base64 -d | gzip -dc"], input=lines.encode(), check=True, capture_output=True)
    assert done.stdout.decode() == without_comments(text)


def test_packing_drops_only_comment_lines() -> None:
    text = "#!/bin/sh\n# why\n\t # more\necho '#' # kept\ncat <<'X'\n  #!/bin/sh\nX\n"
    assert without_comments(text) == "#!/bin/sh\necho '#' # kept\ncat <<'X'\n  #!/bin/sh\nX\n"
    plain = "echo one\n\n  echo two\n"
    assert without_comments(plain) == plain


def test_every_catalog_gpu_has_a_supported_image_and_driver() -> None:
    for gpu in load().gpus.values():
        driver = driver_for(gpu.architecture)
        assert gpu.image == image_for(gpu.architecture).parameter
        assert gpu.last_driver is None or driver.branch <= gpu.last_driver
        assert f"driver_branch={driver.branch}\n" in bootstrap_script(NodeKind(gpu.name, gpu.architecture))


def test_architectures_older_than_turing_use_plain_ubuntu_image() -> None:
    names = {name: image_for(name).name for name in ("Kepler", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper")}
    assert set(list(names.values())[:3]) == {"ubuntu-22.04"}
    assert set(list(names.values())[3:]) == {"dlami-base-ubuntu-22.04"}
    assert driver_for("Kepler").branch == 470  # the last branch that supports it
    assert {driver_for(name).flavour for name in ("Kepler", "Pascal", "Volta")} == {"proprietary"}
    assert (driver_for("Blackwell").flavour, image_for("Blackwell").name) == ("open", "dlami-base-ubuntu-24.04")


def test_v100_node_gets_prebuilt_proprietary_driver(machine: Machine) -> None:
    code, state = machine.boot(bootstrap_script(V100))
    assert (code, state["state"]) == (0, "done")
    assert took(state) == {"quiet": "skipped", "python": "skipped", "store": "skipped", "driver": "done"}
    (install,) = machine.installs()
    assert "linux-modules-nvidia-580-server-6.8.0-1024-aws nvidia-" in install
    calls = "".join(machine.called())
    assert "-open" not in calls
    assert "fabricmanager" not in calls
    (hold,) = [call for call in machine.called() if call.startswith("apt-mark hold")]
    assert hold.split("hold ")[1] in install


def test_unattended_upgrades_are_masked_before_any_installation(machine: Machine) -> None:
    masked = f"{machine.root}/masked"
    machine.stand_in(
        "systemctl",
        f"case $1 in mask) touch {masked};; is-enabled) [ -e {masked} ] && echo masked || echo enabled;; esac",
    )
    _, state = machine.boot(bootstrap_script(V100))
    assert took(state)["quiet"] == "done"
    calls = machine.called()
    assert calls.index(machine.installs()[0]) > next(i for i, call in enumerate(calls) if " mask " in call)


def test_blackwell_gets_open_kernel_modules(machine: Machine) -> None:
    machine.boot(bootstrap_script(B200))
    assert "linux-modules-nvidia-580-server-open-6.8.0" in machine.calls.read_text()


def test_dkms_driver_is_installed_if_no_prebuilt_modules_exist(machine: Machine) -> None:
    machine.stand_in("apt-cache", "exit 100")
    machine.boot(bootstrap_script(V100))
    assert "linux-headers-6.8.0-1024-aws nvidia-dkms-580-server " in machine.calls.read_text()


def test_preinstalled_software_is_not_reinstalled(machine: Machine) -> None:
    machine.stand_in("nvidia-smi")
    machine.stand_in("fi_info")
    machine.stand_in("ldconfig", f"echo '{LISTED}'")
    machine.write("etc/sysctl.d/90-cloudgpu.conf", "")
    machine.stand_in("pdsh")
    code, state = machine.boot(bootstrap_script(CASES["ampere_efa"]))
    assert (code, state["state"]) == (0, "done")
    assert set(took(state).values()) == {"skipped"}
    assert machine.installs() == []


def test_missing_pdsh_is_installed(machine: Machine) -> None:
    brought = (
        f"case $* in *install*pdsh*) printf '#!/bin/sh\\n' >{machine.bin}/pdsh; chmod 755 {machine.bin}/pdsh;; esac"
    )
    machine.stand_in("apt-get", f"{ONLINE}\n{brought}")
    code, state = machine.boot(bootstrap_script(NodeKind("", "", pdsh=True)))
    assert (code, took(state)["pdsh"]) == (0, "done")
    (install,) = machine.installs()
    assert install.endswith(" pdsh")


def test_failed_step_is_reported_with_its_last_output(machine: Machine) -> None:
    machine.stand_in("modprobe", 'echo "modprobe: ERROR: could not insert \\"nvidia\\": No such device" >&2; exit 1')
    code, state = machine.boot(bootstrap_script(CASES["volta_efa_lustre"]))
    assert code == 1
    assert (state["state"], state["step"]) == ("failed", "driver")
    assert "No such device" in state["error"]
    assert list(took(state).items())[-1] == ("driver", "failed")


def test_step_whose_check_still_fails_is_a_failure(machine: Machine) -> None:
    machine.stand_in("python3", "exit 1")
    code, state = machine.boot(bootstrap_script(BARE))
    assert (code, state["state"], state["step"]) == (1, "failed", "python")
    assert "its check still fails" in state["error"]


@pytest.mark.parametrize("lacks", ["ensurepip", "venv", ""])
def test_python_without_a_part_of_venv_gets_the_package(machine: Machine, lacks: str) -> None:
    library = machine.root / "library"
    for name in {"ensurepip", "venv"} - {lacks}:
        (library / name).mkdir(parents=True)
        (library / name / "__init__.py").write_text("raise SystemExit('imported')")
    machine.stand_in(
        "python3",
        f'[ "$1 $2 $3" = "-I -S -c" ] || exit 9; exec {sys.executable} -I -S -c '
        f"\"import sys, importlib.machinery; sys.path = ['{library}']\n$4\"",
    )
    machine.boot(bootstrap_script(BARE))
    assert any("python3-venv" in call for call in machine.installs()) is bool(lacks)


def test_package_installation_is_retried_then_fails(machine: Machine) -> None:
    machine.stand_in(
        "apt-get",
        f'{ONLINE}\ncase "$*" in *" -s "*) ;; '
        f'*install*) echo x >>{machine.root}/n; [ $(cat {machine.root}/n | tr -d "\\n") = xx ];; esac',
    )
    code, _ = machine.boot(bootstrap_script(V100))
    assert code == 0
    machine.stand_in("apt-get", f'{ONLINE}\ncase "$*" in *" -s "*) ;; *install*) exit 100;; esac')
    (machine.root.parent / "driver").unlink()
    code, state = machine.boot(bootstrap_script(V100))
    assert (code, state["state"], state["step"]) == (1, "failed", "driver")
    assert state["error"].startswith("cannot install: linux-modules")


def test_nouveau_module_triggers_reboot_and_bootstrap_continues(machine: Machine) -> None:
    machine.write("proc/modules", "nouveau 123 0 - Live\n")
    machine.stand_in("modprobe", f'[ "$1" = -r ] && exit 1; touch {machine.root.parent}/driver')
    text = pack_script(bootstrap_script(V100))
    code, state = machine.boot(text)
    assert (code, state["state"], state["step"]) == (0, "rebooting", "driver")
    assert "systemctl reboot" in machine.called()
    assert "nouveau" in (machine.root / "etc/modprobe.d/cloudgpu-nouveau.conf").read_text()
    assert machine.installs() == []
    hook = machine.root / "var/lib/cloud/scripts/per-boot/cloudgpu-bootstrap"
    machine.write("proc/modules", "")
    subprocess.run([hook], env=machine.environment, check=True, timeout=60)
    assert (machine.told()["state"], took(machine.told())["driver"]) == ("done", "done")


def test_bootstrap_fails_after_two_reboots(machine: Machine) -> None:
    machine.write("proc/modules", "nouveau 123 0 - Live\n")
    machine.stand_in("modprobe", "exit 1")
    states = [machine.boot(bootstrap_script(V100))[1]["state"] for _ in range(3)]
    assert states == ["rebooting", "rebooting", "failed"]
    assert "after 2 reboots" in machine.told()["error"]


def test_local_disks_are_combined_into_one_volume(machine: Machine) -> None:
    machine.disks("nvme1n1", "nvme2n1")
    machine.write("sys/block/nvme0n1/device/model", "Amazon Elastic Block Store\n")
    _, state = machine.boot(bootstrap_script(BARE))
    assert (state["state"], took(state)["store"]) == ("done", "done")
    calls = machine.called()
    assert any(call.startswith("mdadm --assemble /dev/md/cloudgpu /dev/nvme1n1 /dev/nvme2n1") for call in calls)
    assert any(call.startswith("mkfs.ext4") and call.endswith("/dev/md/cloudgpu") for call in calls)
    assert not any("nvme0n1" in call for call in calls)
    assert (machine.root / "mnt/cloudgpu").stat().st_mode & 0o1777 == 0o1777


def test_raid0_array_is_created_if_none_is_found(machine: Machine) -> None:
    machine.disks("nvme1n1", "nvme2n1")
    machine.stand_in("mdadm", "case $1 in --assemble) exit 1;; esac")
    machine.boot(bootstrap_script(BARE))
    (made,) = [call for call in machine.called() if call.startswith("mdadm --create")]
    assert "--level=0" in made
    assert "--raid-devices=2 /dev/nvme1n1 /dev/nvme2n1" in made


def test_single_disk_is_mounted_without_array_or_reformatting(machine: Machine) -> None:
    machine.disks("nvme1n1")
    machine.stand_in("blkid", 'case "$*" in *export*) echo LABEL=cloudgpu-store;; *) echo cloudgpu-store;; esac')
    machine.boot(bootstrap_script(BARE))
    calls = machine.called()
    assert not any(call.startswith(("mdadm", "mkfs")) for call in calls)
    assert any(call.startswith("mount ") and "/dev/nvme1n1" in call for call in calls)


def test_volume_assembled_by_the_image_is_reused(machine: Machine) -> None:
    machine.disks("nvme1n1")
    machine.write("sys/block/nvme1n1/holders/dm-0", "")
    machine.write("proc/mounts", f"/dev/mapper/vg.01-lv_ephemeral {machine.root}/opt/dlami/nvme ext4 rw 0 0\n")
    _, state = machine.boot(bootstrap_script(BARE))
    assert took(state)["store"] == "done"
    assert (machine.root / "mnt/cloudgpu").readlink() == machine.root / "opt/dlami/nvme"
    assert not any(call.startswith(("mdadm", "mkfs", "mount")) for call in machine.called())


def test_disks_mounted_elsewhere_are_left_untouched(machine: Machine) -> None:
    machine.disks("nvme1n1", "nvme2n1")
    machine.write("proc/mounts", "/dev/nvme2n1p1 /data ext4 rw 0 0\n")
    _, state = machine.boot(bootstrap_script(BARE))
    assert took(state)["store"] == "skipped"
    assert not any(call.startswith(("mdadm", "mkfs", "mount")) for call in machine.called())


def test_docker_data_root_is_on_local_disks(machine: Machine) -> None:
    machine.disks("nvme1n1")
    machine.stand_in("python3", f'exec {sys.executable} "$@"')
    machine.stand_in("docker")
    machine.stand_in(
        "nvidia-ctk",
        f'echo \'{{"runtimes": {{"nvidia": {{"path": "nvidia-container-runtime"}}}}}}\' '
        f">{machine.root}/etc/docker/daemon.json",
    )
    code, state = machine.boot(bootstrap_script(CASES["turing_containers"]))
    assert (code, state["state"]) == (0, "done")
    settings = json.loads((machine.root / "etc/docker/daemon.json").read_text())
    assert settings["data-root"] == f"{machine.root}/mnt/cloudgpu/docker"
    assert "nvidia" in settings["runtimes"]


def test_lustre_client_matches_the_running_kernel(machine: Machine) -> None:
    loaded = machine.root / "lustre"
    machine.stand_in("modinfo", f"[ -e {loaded} ]")
    machine.stand_in("modprobe", f"touch {loaded}")
    _, state = machine.boot(bootstrap_script(NodeKind("", "", mounts=(SETS,))))
    assert took(state)["lustre"] == "done"
    assert any("lustre-client-modules-6.8.0-1024-aws" in call for call in machine.installs())
    assert " jammy main" in (machine.root / "etc/apt/sources.list.d/fsxlustreclientrepo.list").read_text()


def test_second_bootstrap_run_changes_nothing(machine: Machine) -> None:
    machine.disks("nvme1n1")
    text = pack_script(bootstrap_script(V100))
    _, first = machine.boot(text)
    before = len(machine.called())
    code, state = machine.boot(text)
    assert (code, state["state"]) == (0, "done")
    assert took(state) == took(first)  # the recorded results are kept
    assert not any(word in call for call in machine.called()[before:] for word in (" install ", "mkfs", "mount"))


def test_killed_bootstrap_completes_when_rerun(machine: Machine) -> None:
    hanging = machine.root / "hanging"
    machine.stand_in(
        "apt-get",
        f'{ONLINE}\ncase "$*" in *" -s "*) ;; *install*) touch {hanging}; [ -e {hanging}.over ] || sleep 60;; esac',
    )
    text = pack_script(bootstrap_script(V100))
    process = subprocess.Popen([machine.bin / "sh"], stdin=subprocess.PIPE, env=machine.environment, process_group=0)
    process.stdin.write(text.encode())
    process.stdin.close()
    deadline = time.monotonic() + 30
    while not hanging.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (machine.told()["state"], machine.told()["step"]) == ("running", "driver")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    hanging.with_name("hanging.over").touch()
    code, state = machine.boot(text)
    assert (code, state["state"], took(state)["driver"]) == (0, "done", "done")
    assert "dpkg --configure -a" in machine.called()  # the interrupted installation is completed first


def test_image_cleanup_keeps_software_and_removes_node_state(machine: Machine) -> None:
    home = machine.root / "home/ubuntu"
    own = (
        *("etc/ssh/ssh_host_ed25519_key", "etc/ssh/ssh_host_ed25519_key.pub", "home/ubuntu/.ssh/authorized_keys"),
        *("home/ubuntu/.cloudgpu/agent.py", "home/ubuntu/.bash_history", "root/.ssh/authorized_keys"),
        *("var/lib/cloud/instances/i-1/user-data.txt", "var/lib/cloud/sem/x"),
    )
    kept = ("etc/ssh/sshd_config", "etc/modprobe.d/cloudgpu-nouveau.conf", "opt/amazon/efa_installed_packages")
    for path in (*own, *kept):
        machine.write(path, "secret")
    machine.write("etc/machine-id", "0123456789abcdef")
    machine.boot(pack_script(bootstrap_script(BARE)))
    command = [machine.bin / "sh", "-s", str(home)]
    subprocess.run(command, input=image_cleanup_script().encode(), env=machine.environment, check=True, timeout=30)
    assert [path for path in own if (machine.root / path).exists()] == []
    assert all((machine.root / path).exists() for path in kept)
    assert (machine.root / "etc/machine-id").read_text() == ""
    assert not machine.state.exists()
    assert not (machine.root / "var/lib/cloud/scripts/per-boot/cloudgpu-bootstrap").exists()
    # The first node of the image bootstraps as usual and finds every step done.
    code, state = machine.boot(pack_script(bootstrap_script(BARE)))
    assert (code, set(took(state).values())) == (0, {"skipped"})


def test_concurrent_bootstrap_runs_do_not_overlap(machine: Machine) -> None:
    inside = machine.root / "inside"
    machine.stand_in("python3", f"mkdir {inside} || echo met >>{machine.calls}; sleep 0.2; rm -r {inside}")
    both = [
        subprocess.Popen([machine.bin / "sh", "-c", bootstrap_script(BARE)], env=machine.environment) for _ in range(2)
    ]
    assert [one.wait(30) for one in both] == [0, 0]
    assert "met" not in machine.called()


def test_bootstrap_writes_only_its_expected_files(machine: Machine) -> None:
    before = {str(path.relative_to(machine.root)) for path in machine.root.rglob("*") if path.is_file()}
    machine.boot(pack_script(bootstrap_script(V100)))
    files = {str(path.relative_to(machine.root)) for path in machine.root.rglob("*") if path.is_file()} - before
    state = "var/lib/cloudgpu"
    assert files == {
        *(
            f"{state}/{name}"
            for name in ("bootstrap.json", "bootstrap.lock", "bootstrap.log", "bootstrap.sh", "online")
        ),
        *(f"{state}/steps/{name}" for name in ("quiet", "python", "store", "driver")),
        "var/lib/cloud/scripts/per-boot/cloudgpu-bootstrap",
    }


def node_with_a_disk(machine: Machine, *, holds: bytes, blkid: int) -> list[str]:
    """Boot a node with an attached volume; return its mkfs and mount calls."""
    machine.write(volume_device_path("vol-0a1b2c3d4e5f60718").lstrip("/"), "")
    (machine.root / volume_device_path("vol-0a1b2c3d4e5f60718").lstrip("/")).write_bytes(holds)
    mounted = machine.root / "mounted"
    for name in ("head", "wc", "stat"):
        (machine.bin / name).unlink(missing_ok=True)
        (machine.bin / name).symlink_to(shutil.which(name))
    machine.stand_in("mountpoint", f"[ -e {mounted} ]")
    machine.stand_in("mount", f"touch {mounted}")
    machine.stand_in("blkid", f"exit {blkid}")
    machine.boot(bootstrap_script(NodeKind("", "", mounts=(DISK,))))
    return [call for call in machine.called() if call.startswith(("mkfs", "mount "))]


def test_empty_volume_is_formatted_and_mounted(machine: Machine) -> None:
    made, mounted = node_with_a_disk(machine, holds=bytes(4096), blkid=2)
    assert made.startswith("mkfs.ext4 ")
    assert mounted.endswith("/data/disk")
    assert took(machine.told())["mount_disk"] == "done"


@pytest.mark.parametrize(("holds", "blkid"), [(b"\0" * 64 + b"somebody's own format", 2), (bytes(4096), 4)])
def test_volume_that_may_contain_data_is_never_formatted(machine: Machine, holds: bytes, blkid: int) -> None:
    assert node_with_a_disk(machine, holds=holds, blkid=blkid) == []
    told = machine.told()
    assert (told["state"], told["step"]) == ("failed", "mount_disk")
    assert "is not formatted" in told["error"]


def test_volume_with_a_file_system_is_mounted_without_formatting(machine: Machine) -> None:
    (mounted,) = node_with_a_disk(machine, holds=b"x", blkid=0)
    assert mounted.startswith("mount -o noatime ")


def test_volume_is_mounted_again_after_a_reboot(machine: Machine) -> None:
    mounted = machine.root / "mounted"
    node_with_a_disk(machine, holds=b"x", blkid=0)
    mounted.unlink()
    machine.boot(bootstrap_script(NodeKind("", "", mounts=(DISK,))))
    assert mounted.exists()
