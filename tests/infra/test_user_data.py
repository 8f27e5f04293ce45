"""The text that ends a node: golden, valid POSIX sh, and really run with stand-ins."""

import email
import os
import shutil
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_cluster.user_data import UserDataTooLongError, expiry_hook, user_data

EXPIRES = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)

GOLDEN_HOOK = r"""#!/bin/sh
# Runs at every boot, before drivers, network mounts and SSH: this node ends itself at 2026-11-21T05:00:00Z.
deadline=1795237200

end_now() {
    systemctl poweroff || shutdown -h now || poweroff -f
}

if [ "$(date -u +%s)" -ge "$deadline" ]; then
    end_now
    exit 0
fi

if systemctl is-active --quiet cloudgpu-expiry.timer 2>/dev/null; then
    exit 0
fi

# No default dependencies and no waiting: this early the targets that a timer waits for wait for this script.
if systemd-run --no-block --unit=cloudgpu-expiry --on-calendar='2026-11-21 05:00:00 UTC' \
    --timer-property=AccuracySec=1s --timer-property=DefaultDependencies=no --property=DefaultDependencies=no \
    systemctl poweroff; then
    exit 0
fi

# No systemd to ask: a detached loop does the same.
(
    trap '' HUP
    while now=$(date -u +%s) && [ "$now" -lt "$deadline" ]; do
        left=$((deadline - now))
        [ "$left" -gt 15 ] && left=15
        sleep "$left"
    done
    end_now
) </dev/null >/dev/null 2>&1 &
exit 0
"""


def test_golden_hook() -> None:
    assert expiry_hook(EXPIRES) == GOLDEN_HOOK


def test_expiry_comes_first_and_the_bootstrap_is_unchanged() -> None:
    bootstrap = "#!/bin/sh\n# Gr\u00fc\u00dfe\nexport X='a \"b\"'\necho --cloudgpu-- done\n"
    message = email.message_from_bytes(user_data(EXPIRES, bootstrap).encode())
    assert [part.get_content_type() for part in message.get_payload()] == [
        "text/cloud-boothook",
        "text/x-shellscript",
    ]
    texts = [part.get_payload(decode=True).decode() for part in message.get_payload()]
    assert texts == [GOLDEN_HOOK, bootstrap]


def test_without_bootstrap_there_is_one_part() -> None:
    assert len(email.message_from_string(user_data(EXPIRES, "")).get_payload()) == 1


def test_same_settings_same_bytes() -> None:
    assert user_data(EXPIRES, "echo hi\n") == user_data(EXPIRES, "echo hi\n")


def test_ec2s_limit_is_ours_too() -> None:
    room = 16384 - len(user_data(EXPIRES, "x").encode()) + 1
    assert len(user_data(EXPIRES, "x" * room).encode()) == 16384
    with pytest.raises(UserDataTooLongError, match="16385 bytes"):
        user_data(EXPIRES, "x" * (room + 1))


def shells() -> list[str]:
    return [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


@pytest.mark.parametrize("shell", shells())
def test_it_is_valid_in_every_shell_here(shell: str) -> None:
    argv = [shell, "sh", "-n"] if shell == "busybox" else [shell, "-n"]
    subprocess.run(argv, input=expiry_hook(EXPIRES), text=True, check=True)


class Stand:
    """A directory that is the whole PATH: the hook cannot reach the machine's own systemctl."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, root / "log"
        for real in ("date", "sleep"):
            (root / real).symlink_to(shutil.which(real))

    def command(self, name: str, body: str) -> None:
        path = self.root / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.log}"\n{body}\n')
        path.chmod(0o755)

    def boot(self, expires_at: datetime) -> None:
        hook = self.root / "hook"
        hook.write_text(expiry_hook(expires_at))
        subprocess.run(["/bin/sh", hook], env={"PATH": str(self.root)}, check=True, timeout=20)

    def said(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


IN_AN_HOUR = timedelta(hours=1)


def test_boot_after_the_expiry_powers_off_at_once(stand: Stand) -> None:
    stand.command("systemctl", "exit 0")
    stand.boot(datetime.now(UTC) - timedelta(seconds=1))
    assert stand.said() == ["systemctl poweroff"]


def test_every_way_to_power_off_is_tried(stand: Stand) -> None:
    for name in ("systemctl", "shutdown"):
        stand.command(name, "exit 1")
    stand.command("poweroff", "exit 0")
    stand.boot(datetime.now(UTC) - IN_AN_HOUR)
    assert stand.said() == ["systemctl poweroff", "shutdown -h now", "poweroff -f"]


def test_a_timer_is_armed_for_the_absolute_time(stand: Stand) -> None:
    stand.command("systemctl", "exit 3")
    stand.command("systemd-run", "exit 0")
    expires_at = (datetime.now(UTC) + IN_AN_HOUR).replace(microsecond=0)
    stand.boot(expires_at)
    armed = stand.said()[-1]
    assert f"--on-calendar={expires_at:%Y-%m-%d %H:%M:%S} UTC" in armed
    assert armed.endswith("systemctl poweroff")


def test_a_second_run_in_one_boot_arms_no_second_timer(stand: Stand) -> None:
    stand.command("systemctl", "exit 0")
    stand.command("systemd-run", "exit 0")
    stand.boot(datetime.now(UTC) + IN_AN_HOUR)
    assert stand.said() == ["systemctl is-active --quiet cloudgpu-expiry.timer"]


def test_without_systemd_a_detached_loop_waits(stand: Stand) -> None:
    stand.command("shutdown", "exit 0")
    stand.boot(datetime.now(UTC) + timedelta(seconds=2))
    assert stand.said() == []
    deadline = time.monotonic() + 15
    while not stand.said() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stand.said() == ["shutdown -h now"]


def test_the_machine_is_out_of_reach_of_these_tests(stand: Stand) -> None:
    names = ("systemctl", "shutdown", "poweroff", "systemd-run")
    assert [name for name in names if shutil.which(name, path=os.fspath(stand.root))] == []
