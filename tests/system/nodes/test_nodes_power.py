"""Nodes end by themselves, at the time they were told, and whoever listens hears it."""

import threading

import pytest

pytestmark = pytest.mark.system

_EXPIRY = (
    "systemd-run --no-block --unit=cloudgpu-expiry --on-active=3600 --timer-property=AccuracySec=1s systemctl poweroff"
)
_HOOK = f"""Content-Type: multipart/mixed; boundary="b"
MIME-Version: 1.0

--b
Content-Type: text/cloud-boothook; charset="us-ascii"

#!/bin/sh
{_EXPIRY}
echo hook >> "${{CLOUDGPU_NODE_ROOT}}/var/hooks"
--b
Content-Type: text/x-shellscript; charset="us-ascii"

#!/bin/sh
echo script >> "${{CLOUDGPU_NODE_ROOT}}/var/scripts"
--b--
"""


def test_a_timer_of_the_boot_hook_ends_the_node_at_its_time_and_the_listener_hears_it_once(bench):
    node = bench.client.start(bench.spec(user_data=_HOOK))
    bench.finished()
    assert b"cloudgpu-expiry.timer" in bench.ssh(node, "systemctl list-timers").stdout
    assert bench.ssh(node, "systemctl is-active --quiet cloudgpu-expiry.timer").returncode == 0
    bench.client.advance(3000)
    assert bench.state()[0] == "running"
    bench.client.advance(700)
    events = bench.client.events()
    assert next(events).reason == "its timer cloudgpu-expiry fired"
    assert bench.state()[0] == "off"
    assert bench.ssh(node, "true").returncode == 255
    bench.client.start(bench.spec(2, "#!/bin/sh\npoweroff\n"))
    assert next(events).instance_id == bench.spec(2).instance_id
    events.close()


def test_an_event_that_nobody_confirmed_is_told_again(bench):
    bench.client.start(
        bench.spec(
            user_data="#!/bin/sh\nsudo /sbin/shutdown -h now\n"
            if bench.isolation == "cage"
            else "#!/bin/sh\nsudo shutdown -h now\n"
        )
    )
    for _ in range(2):
        events = bench.client.events()
        assert next(events).instance_id == bench.spec().instance_id
        events.close()


def test_a_waiting_listener_is_woken_and_ends_with_the_host(bench):
    heard: list[str] = []
    listener = threading.Thread(target=lambda: heard.extend(event.reason for event in bench.client.events()))
    bench.client.list()
    listener.start()
    node = bench.client.start(bench.spec())
    bench.ssh(node, "systemctl poweroff")
    bench.until(lambda: heard)
    bench.client.shutdown()
    listener.join(20)
    assert not listener.is_alive()
    assert heard == ["it powered itself off"]


@pytest.mark.parametrize(
    ("command", "end"),
    [("poweroff", "off"), ("halt", "off"), ("shutdown -h now", "off"), ("sudo -n systemctl poweroff", "off"),
     ("systemd-run --on-active=1s poweroff", "off"), ("systemctl reboot", "running")],
)  # fmt: skip
def test_every_power_command_ends_or_reboots_the_node(caged_bench, command, end):
    bench = caged_bench
    node = bench.client.start(bench.spec())
    bench.finished()
    bench.ssh(node, "touch /run/before")
    bench.ssh(node, command)
    if end == "off":
        bench.until(lambda: bench.state()[0] == "off")
    else:
        bench.until(lambda: bench.ssh(node, "test ! -e /run/before").returncode == 0)


def test_shutdown_can_be_planned_and_taken_back(bench):
    node = bench.client.start(bench.spec())
    bench.ssh(node, "shutdown -h +10")
    bench.ssh(node, "shutdown -c")
    bench.ssh(node, "systemd-run --unit=x --on-calendar='2035-01-01 00:00:00 UTC' systemctl poweroff")
    bench.ssh(node, "systemctl stop x.timer")
    bench.client.advance(3600 * 86400)
    assert bench.state()[0] == "running"
    bench.ssh(node, "shutdown +1")
    bench.client.advance(61)
    bench.until(lambda: bench.state()[0] == "off")


def test_a_node_that_is_off_boots_again_from_its_disk_with_its_key_and_runs_hooks_again_but_scripts_once(bench):
    node = bench.client.start(bench.spec(user_data=_HOOK))
    bench.finished()
    bench.client.power_off(bench.spec().instance_id)
    assert bench.state() == ("off", "it was powered off")
    assert bench.client.start(bench.spec(user_data=_HOOK)) == node
    bench.client.reboot(bench.spec().instance_id)
    done = bench.ssh(node, 'cat "$CLOUDGPU_NODE_ROOT/var/hooks" "$CLOUDGPU_NODE_ROOT/var/scripts"')
    assert done.stdout.split() == [b"hook"] * 3 + [b"script"]


def test_hooks_run_before_anybody_can_log_in_and_scripts_do_not_keep_them_waiting(bench):
    hook = '#cloud-boothook\n#!/bin/sh\ntouch "$CLOUDGPU_NODE_ROOT/var/hooked"\n'
    node = bench.client.start(bench.spec(1, hook))
    assert bench.ssh(node, 'test -e "$CLOUDGPU_NODE_ROOT/var/hooked"').returncode == 0
    slow = bench.client.start(
        bench.spec(2, "#!/bin/sh\nwhile [ ! -e $CLOUDGPU_NODE_ROOT/var/go ]; do sleep 0.05; done; exit 3\n")
    )
    assert bench.ssh(slow, "cloud-init status").stdout == b"status: running\n"
    assert bench.ssh(slow, 'touch "$CLOUDGPU_NODE_ROOT/var/go"; cloud-init status --wait').stdout == b"status: error\n"
    assert "script part-001 ended with 3" in bench.finished(2)


def test_stop_removes_the_disk_and_keeps_the_console(bench):
    bench.client.start(bench.spec(user_data="#!/bin/sh\necho a line\n"))
    bench.finished()
    name = bench.spec().instance_id
    bench.client.stop(name)
    bench.client.stop(name)
    assert bench.state() == ("off", "it was stopped")
    assert b"a line\r\n" in bench.client.console(name)
    assert not (bench.client.directory / "instances" / name / "disk").exists()
    bench.client.forget(name)
    assert bench.client.list() == ()
    assert not (bench.client.directory / "instances" / name).exists()


def test_stop_kills_what_the_node_left_in_the_background(bench):
    node = bench.client.start(bench.spec())
    marker = f"{90000 + bench.host_pid()}"
    quiet = ">/dev/null 2>&1 </dev/null"
    bench.ssh(node, f"setsid sleep {marker} {quiet} & trap '' TERM HUP; (sleep {marker} &) {quiet}")
    assert bench.until(lambda: _running(marker) == 2)
    bench.client.stop(bench.spec().instance_id)
    assert _running(marker) == 0


def _running(argument: str) -> int:
    from pathlib import Path

    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found += (folder / "cmdline").read_bytes() == f"sleep\0{argument}\0".encode()
        except OSError:
            continue
    return found
