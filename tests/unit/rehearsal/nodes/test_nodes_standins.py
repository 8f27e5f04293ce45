"""The stub commands respond like the real commands without changing anything."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cloudgpu.rehearsal.nodes import gpus
from cloudgpu.rehearsal.nodes.gpus import Archive
from cloudgpu.rehearsal.nodes.record import Timer
from cloudgpu.rehearsal.nodes.servers import command_answers
from cloudgpu.rehearsal.nodes.values import NodeSpec

_NOW = datetime(2026, 11, 21, 2, 0, 0, tzinfo=UTC)
_SPEC = NodeSpec(
    instance_id="i-0abc", instance_type="p3dn.24xlarge", region="us-east-1", zone="us-east-1c", image_id="ami-1",
    address="", user="ubuntu", authorized_keys=(), user_data=b"", gpu="Tesla V100-SXM2-32GB", gpus=2,
    gpu_memory_mib=32768, efa_interfaces=1,
)  # fmt: skip
_SCENE = command_answers.CommandContext(
    _SPEC, _NOW, (Timer("exp", _NOW.timestamp() + 60, ("poweroff",)),), boot_finished=True
)


def _ask(line, scene=_SCENE, units=None):
    program, *arguments = line.split()
    return command_answers.simulate_command(program, arguments, units or {}, scene)


@pytest.mark.parametrize(
    ("line", "end"),
    [("poweroff -f", "off"), ("halt", "off"), ("reboot", "reboot"), ("init 0", "off"), ("telinit 6", "reboot"),
     ("shutdown -h now", "off"), ("shutdown -r now", "reboot"), ("systemctl --force poweroff", "off"),
     ("systemd-run --no-block systemctl poweroff", "off")],
)  # fmt: skip
def test_power_commands_stop_or_reboot_the_node(line, end):
    assert _ask(line).end == end


def test_timers_can_be_armed_queried_and_disarmed():
    reply = _ask("systemd-run --unit=new --on-active=90 systemctl poweroff")
    assert reply.arm == Timer("new", _NOW.timestamp() + 90, ("systemctl", "poweroff"))
    assert reply.end is None
    assert _ask("systemd-run --unit=exp --on-active=90 poweroff").exit_code == 1
    assert _ask("systemctl is-active exp.timer").stdout == "active\n"
    assert _ask("systemctl is-active --quiet other.timer") == command_answers.Reply(exit_code=3)
    assert _ask("systemctl stop exp.timer").disarm == "exp"
    assert "Sat 2026-11-21 02:01:00 UTC  exp.timer  exp.service" in _ask("systemctl list-timers").stdout
    assert _ask("shutdown -c").disarm == "shutdown"
    assert _ask("shutdown +5").arm == Timer("shutdown", _NOW.timestamp() + 300, ("poweroff",))


def test_enable_now_arms_a_timer_and_missing_units_fail():
    units = {"t.timer": "[Timer]\nOnActiveSec=5min\n", "t.service": "[Service]\nExecStart=/bin/x y\n"}
    assert _ask("systemctl enable --now t.timer", units=units).arm == Timer(
        "t", _NOW.timestamp() + 300, ("/bin/x", "y")
    )
    assert _ask("systemctl enable t.timer", units=units).arm is None
    assert _ask("systemctl start t.timer").exit_code == 5


def test_invalid_timer_time_fails_only_the_command():
    reply = _ask("systemd-run --on-calendar=whenever poweroff")
    assert (reply.exit_code, reply.arm) == (1, None)
    assert "whenever" in reply.stderr


def test_machine_changing_commands_are_logged_as_simulated():
    reply = _ask("apt-get install -y x")
    assert "simulated" in reply.stdout
    assert reply.log == "apt-get install -y x"
    assert _ask("systemctl restart docker").log == "systemctl restart docker"


def test_cloud_init_status_reflects_the_boot_state():
    booting = replace(_SCENE, boot_finished=False)
    assert _ask("cloud-init status", booting).stdout == "status: running\n"
    assert _ask("cloud-init status --wait", booting).wait_for_boot
    assert _ask("cloud-init status --wait").stdout == "status: done\n"
    assert _ask("cloud-init status", replace(_SCENE, boot_failed=True)).exit_code == 1


def test_nvidia_smi_lists_gpus_marked_as_simulated():
    listing, code = gpus.simulate_nvidia_smi(_SPEC, ["-L"])
    assert code == 0
    assert listing.splitlines()[1].startswith("GPU 1: Tesla V100-SXM2-32GB (simulated) (UUID: GPU-")
    asked = "--query-gpu=index,name,memory.total,driver_version,ecc.errors.uncorrected.volatile.total"
    text, _ = gpus.simulate_nvidia_smi(_SPEC, [asked, "--format=csv,noheader,nounits"])
    assert text.splitlines()[0] == f"0, Tesla V100-SXM2-32GB (simulated), 32768, {gpus.DRIVER}, 0"
    text, _ = gpus.simulate_nvidia_smi(_SPEC, ["--query-gpu=memory.total,utilization.gpu", "--format=csv"])
    assert text.splitlines()[:2] == ["memory.total [MiB], utilization.gpu [%]", "32768 MiB, 0 %"]
    assert gpus.simulate_nvidia_smi(_SPEC, ["--query-gpu=nonsense", "--format=csv"])[1] == 2
    assert gpus.simulate_nvidia_smi(replace(_SPEC, gpus=0), ["-L"]) == ("No devices were found\n", 6)
    assert "(simulated)" in gpus.simulate_nvidia_smi(_SPEC, [])[0]


def test_loader_finds_the_nccl_plugin_only_on_nodes_with_efa():
    assert "libnccl-net.so " in _ask("ldconfig -p").stdout
    assert "libnccl-net.so" not in _ask("ldconfig -p", replace(_SCENE, spec=replace(_SPEC, efa_interfaces=0))).stdout


def test_fi_info_lists_efa_only_if_available():
    assert _ask("fi_info -p efa").stdout.count("provider: efa") == 1
    assert _ask("fi_info", replace(_SCENE, spec=replace(_SPEC, efa_interfaces=0))).exit_code == 61


_BARE = replace(_SCENE, bare=True, installed=("nvidia-utils-580-server",))
_PREBUILT = "linux-modules-nvidia-580-server{}-6.8.0-1024-aws"


def _newer(scene):
    return replace(scene, archive=Archive(newer_libraries=True))


@pytest.mark.parametrize(("flavour", "code"), [("", 0), ("-open", 100)])
def test_prebuilt_modules_do_not_match_newer_libraries(flavour, code):
    name = _PREBUILT.format(flavour)
    shown = _ask(f"apt-cache show --no-all-versions {name}", _newer(_BARE)).stdout
    assert "nvidia-kernel-common-580-server (>= 580.126.09)" in shown
    assert "Candidate: 580.173.02-" in _ask("apt-cache policy nvidia-utils-580-server", _newer(_BARE)).stdout
    line = f"apt-get -y install {name} nvidia-utils-580-server"
    assert (_ask(line, _BARE).exit_code, _ask(line, _newer(_BARE)).exit_code) == (0, code)
    installed = replace(_BARE, installed=(name, "nvidia-utils-580-server"))
    assert _ask("nvidia-smi", installed).exit_code == 0
    mismatched = _ask("nvidia-smi", _newer(installed))
    assert (mismatched.exit_code, "Driver/library version mismatch" in mismatched.stdout) == (18, True)
    built = replace(installed, installed=("nvidia-dkms-580-server", "nvidia-utils-580-server"))
    assert _ask("nvidia-smi", _newer(built)).exit_code == 0


_NVSWITCH = replace(_SCENE, spec=replace(_SPEC, gpu="A100", gpus=8))


def test_fabric_manager_runs_only_on_nodes_with_nvswitch():
    assert _ask("nv-fabricmanager --version", _NVSWITCH).stdout == "Fabric Manager version is : 580.126.09\n"
    assert _ask("systemctl is-active nvidia-fabricmanager", _NVSWITCH).stdout == "active\n"
    assert _ask("journalctl -u nvidia-fabricmanager -n 1 -o cat", _NVSWITCH).stdout.startswith("Started ")
    assert _ask("nv-fabricmanager --version").exit_code == 127
    assert _ask("systemctl is-active nvidia-fabricmanager").exit_code == 3


def test_fabric_manager_that_is_down_cannot_be_started():
    down = replace(_NVSWITCH, fabric_manager_down=True)
    failed = _ask("systemctl restart nvidia-fabricmanager", down)
    assert (failed.exit_code, failed.stderr.splitlines()[0]) == (
        1,
        "Job for nvidia-fabricmanager.service failed because the control process exited with error code.",
    )
    assert _ask("systemctl restart docker", down).exit_code == 0
    assert _ask("systemctl status nvidia-fabricmanager.service", down).stdout == "inactive\n"
    log = _ask("journalctl -u nvidia-fabricmanager -n 1 -o cat", down).stdout
    assert log == "Failed to start NVIDIA fabric manager service.\n"


def test_bare_image_has_fabric_manager_only_after_its_package_was_installed():
    bare = replace(_NVSWITCH, bare=True)
    assert _ask("nv-fabricmanager --version", bare).exit_code == 127
    installed = replace(bare, installed=("nvidia-fabricmanager-580",))
    assert _ask("nv-fabricmanager --version", installed).exit_code == 0


def test_simulated_installation_installs_nothing_and_versions_are_not_part_of_names():
    assert _ask("apt-get -q -s install nvidia-utils-580-server").installed == ()
    assert _ask("apt-get -q install a=1-2 -y b").installed == ("a", "b")


def test_driver_that_is_still_loading_is_installed_but_does_not_work():
    loading = replace(_SCENE, driver_loading=True)
    assert (_ask("modinfo nvidia", loading).exit_code, _ask("nvidia-smi", loading).exit_code) == (0, 9)
    assert (_ask("modinfo nvidia", replace(_SCENE, bare=True)).exit_code) == 1


def test_apt_update_succeeds_with_and_without_internet_access():
    assert _ask("apt-get -q update").stdout.startswith("Hit:1 http://")
    offline = _ask("apt-get -q update", replace(_SCENE, spec=replace(_SPEC, egress=False)))
    assert (offline.exit_code, offline.stdout.startswith("Err:1 http://")) == (0, True)
