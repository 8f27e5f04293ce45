"""The stand-ins answer as the real commands do, and do nothing by themselves."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cloudgpu.rehearsal.node_spec import NodeSpec
from cloudgpu.rehearsal.nodes.record import Timer
from cloudgpu.rehearsal.nodes.servers import command_answers, nvidia_smi

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
def test_power_commands_end_the_node(line, end):
    assert _ask(line).end == end


def test_timers_are_armed_asked_for_and_disarmed():
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


def test_a_timer_file_is_armed_by_enable_now_and_missing_ones_are_an_error():
    units = {"t.timer": "[Timer]\nOnActiveSec=5min\n", "t.service": "[Service]\nExecStart=/bin/x y\n"}
    assert _ask("systemctl enable --now t.timer", units=units).arm == Timer(
        "t", _NOW.timestamp() + 300, ("/bin/x", "y")
    )
    assert _ask("systemctl enable t.timer", units=units).arm is None
    assert _ask("systemctl start t.timer").exit_code == 5


def test_wrong_times_are_errors_of_the_command_and_not_of_the_host():
    reply = _ask("systemd-run --on-calendar=whenever poweroff")
    assert (reply.exit_code, reply.arm) == (1, None)
    assert "whenever" in reply.stderr


def test_what_would_change_the_machine_is_logged_and_says_simulated():
    reply = _ask("apt-get install -y x")
    assert "simulated" in reply.stdout
    assert reply.log == "apt-get install -y x"
    assert _ask("systemctl restart docker").log == "systemctl restart docker"


def test_cloud_init_status_waits_for_the_boot():
    booting = replace(_SCENE, boot_finished=False)
    assert _ask("cloud-init status", booting).stdout == "status: running\n"
    assert _ask("cloud-init status --wait", booting).wait_for_boot
    assert _ask("cloud-init status --wait").stdout == "status: done\n"
    assert _ask("cloud-init status", replace(_SCENE, boot_failed=True)).exit_code == 1


def test_gpus_are_listed_from_the_spec_and_marked():
    listing, code = nvidia_smi.simulate_nvidia_smi(_SPEC, ["-L"])
    assert code == 0
    assert listing.splitlines()[1].startswith("GPU 1: Tesla V100-SXM2-32GB (simulated) (UUID: GPU-")
    asked = "--query-gpu=index,name,memory.total,driver_version,ecc.errors.uncorrected.volatile.total"
    text, _ = nvidia_smi.simulate_nvidia_smi(_SPEC, [asked, "--format=csv,noheader,nounits"])
    assert text.splitlines()[0] == f"0, Tesla V100-SXM2-32GB (simulated), 32768, {nvidia_smi.DRIVER}, 0"
    text, _ = nvidia_smi.simulate_nvidia_smi(_SPEC, ["--query-gpu=memory.total,utilization.gpu", "--format=csv"])
    assert text.splitlines()[:2] == ["memory.total [MiB], utilization.gpu [%]", "32768 MiB, 0 %"]
    assert nvidia_smi.simulate_nvidia_smi(_SPEC, ["--query-gpu=nonsense", "--format=csv"])[1] == 2
    assert nvidia_smi.simulate_nvidia_smi(replace(_SPEC, gpus=0), ["-L"]) == ("No devices were found\n", 6)
    assert "(simulated)" in nvidia_smi.simulate_nvidia_smi(_SPEC, [])[0]


def test_efa_is_listed_where_the_type_has_it():
    assert _ask("fi_info -p efa").stdout.count("provider: efa") == 1
    assert _ask("fi_info", replace(_SCENE, spec=replace(_SPEC, efa_interfaces=0))).exit_code == 61
