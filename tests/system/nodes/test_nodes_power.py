"""Nodes power themselves off, immediately or on schedule, and listeners receive an event."""

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


def test_boot_hook_timer_powers_node_off_and_emits_single_event(workspace):
    node = workspace.client.start(workspace.spec(user_data=_HOOK))
    workspace.finished()
    assert b"cloudgpu-expiry.timer" in workspace.ssh(node, "systemctl list-timers").stdout
    assert workspace.ssh(node, "systemctl is-active --quiet cloudgpu-expiry.timer").returncode == 0
    workspace.client.advance(3000)
    assert workspace.state()[0] == "running"
    workspace.client.advance(700)
    events = workspace.client.events()
    assert next(events).reason == "its timer cloudgpu-expiry fired"
    assert workspace.state()[0] == "off"
    assert workspace.ssh(node, "true").returncode == 255
    workspace.client.start(workspace.spec(2, "#!/bin/sh\npoweroff\n"))
    assert next(events).instance_id == workspace.spec(2).instance_id
    events.close()


def test_unconfirmed_event_is_delivered_again(workspace):
    workspace.client.start(
        workspace.spec(
            user_data="#!/bin/sh\nsudo /sbin/shutdown -h now\n"
            if workspace.isolation == "cage"
            else "#!/bin/sh\nsudo shutdown -h now\n"
        )
    )
    for _ in range(2):
        events = workspace.client.events()
        assert next(events).instance_id == workspace.spec().instance_id
        events.close()


def test_event_listener_receives_power_off_and_ends_with_host(workspace):
    heard: list[str] = []
    listener = threading.Thread(target=lambda: heard.extend(event.reason for event in workspace.client.events()))
    workspace.client.list()
    listener.start()
    node = workspace.client.start(workspace.spec())
    workspace.ssh(node, "systemctl poweroff")
    workspace.until(lambda: heard)
    workspace.client.shutdown()
    listener.join(20)
    assert not listener.is_alive()
    assert heard == ["it powered itself off"]


@pytest.mark.parametrize(
    ("command", "end"),
    [("poweroff", "off"), ("halt", "off"), ("shutdown -h now", "off"), ("sudo -n systemctl poweroff", "off"),
     ("systemd-run --on-active=1s poweroff", "off"), ("systemctl reboot", "running")],
)  # fmt: skip
def test_power_commands_end_or_reboot_node(caged_workspace, command, end):
    workspace = caged_workspace
    node = workspace.client.start(workspace.spec())
    workspace.finished()
    workspace.ssh(node, "touch /run/before")
    workspace.ssh(node, command)
    if end == "off":
        workspace.until(lambda: workspace.state()[0] == "off")
    else:
        workspace.until(lambda: workspace.ssh(node, "test ! -e /run/before").returncode == 0)


def test_scheduled_shutdown_can_be_cancelled(workspace):
    node = workspace.client.start(workspace.spec())
    workspace.ssh(node, "shutdown -h +10")
    workspace.ssh(node, "shutdown -c")
    workspace.ssh(node, "systemd-run --unit=x --on-calendar='2035-01-01 00:00:00 UTC' systemctl poweroff")
    workspace.ssh(node, "systemctl stop x.timer")
    workspace.client.advance(3600 * 86400)
    assert workspace.state()[0] == "running"
    workspace.ssh(node, "shutdown +1")
    workspace.client.advance(61)
    workspace.until(lambda: workspace.state()[0] == "off")


def test_restarted_node_keeps_disk_and_reruns_hooks_but_not_scripts(workspace):
    node = workspace.client.start(workspace.spec(user_data=_HOOK))
    workspace.finished()
    workspace.client.power_off(workspace.spec().instance_id)
    assert workspace.state() == ("off", "it was powered off")
    assert workspace.client.start(workspace.spec(user_data=_HOOK)) == node
    workspace.client.reboot(workspace.spec().instance_id)
    done = workspace.ssh(node, 'cat "$CLOUDGPU_NODE_ROOT/var/hooks" "$CLOUDGPU_NODE_ROOT/var/scripts"')
    assert done.stdout.split() == [b"hook"] * 3 + [b"script"]


def test_ssh_waits_for_boot_hooks_but_not_for_scripts(workspace):
    hook = '#cloud-boothook\n#!/bin/sh\ntouch "$CLOUDGPU_NODE_ROOT/var/hooked"\n'
    node = workspace.client.start(workspace.spec(1, hook))
    assert workspace.ssh(node, 'test -e "$CLOUDGPU_NODE_ROOT/var/hooked"').returncode == 0
    slow = workspace.client.start(
        workspace.spec(2, "#!/bin/sh\nwhile [ ! -e $CLOUDGPU_NODE_ROOT/var/go ]; do sleep 0.05; done; exit 3\n")
    )
    assert workspace.ssh(slow, "cloud-init status").stdout == b"status: running\n"
    assert (
        workspace.ssh(slow, 'touch "$CLOUDGPU_NODE_ROOT/var/go"; cloud-init status --wait').stdout == b"status: error\n"
    )
    assert "script part-001 exited with status 3" in workspace.finished(2)


def test_stop_removes_disk_and_keeps_console(workspace):
    workspace.client.start(workspace.spec(user_data="#!/bin/sh\necho a line\n"))
    workspace.finished()
    name = workspace.spec().instance_id
    workspace.client.stop(name)
    workspace.client.stop(name)
    assert workspace.state() == ("off", "it was stopped")
    assert b"a line\r\n" in workspace.client.console(name)
    assert not (workspace.client.directory / "instances" / name / "disk").exists()
    workspace.client.forget(name)
    assert workspace.client.list() == ()
    assert not (workspace.client.directory / "instances" / name).exists()


def test_stop_kills_background_processes_of_node(workspace):
    node = workspace.client.start(workspace.spec())
    marker = f"{90000 + workspace.host_pid()}"
    quiet = ">/dev/null 2>&1 </dev/null"
    workspace.ssh(node, f"setsid sleep {marker} {quiet} & trap '' TERM HUP; (sleep {marker} &) {quiet}")
    assert workspace.until(lambda: _running(marker) == 2)
    workspace.client.stop(workspace.spec().instance_id)
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
