"""The expiry hook of a node: golden text, valid POSIX sh, and execution with stub commands."""

import email
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_cluster.user_data import EXTENDABLE, UserDataTooLongError, expiry_hook, user_data

EXPIRES = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
IN_AN_HOUR = NOW + timedelta(hours=1)

GOLDEN_HOOK = r"""#!/bin/sh
# Runs at every boot, before drivers, network mounts and SSH: this node ends itself at 2026-11-21T05:00:00Z,
# or at a later moment, 2026-12-05T05:00:00Z at most, that an extension has left in a file on its disk.
deadline=1795237200
latest=1796446800
kept="${CLOUDGPU_NODE_ROOT:-}/var/lib/cloudgpu"

end_now() {
    systemctl poweroff || shutdown -h now || poweroff -f
}

# A plain number of seconds between the two; longer ones would overflow the comparison.
is_allowed() {
    case $1 in
        '' | *[!0-9]* | ????????????*) return 1 ;;
    esac
    [ "$1" -ge "$deadline" ] && [ "$1" -le "$latest" ]
}

# A damaged file counts for nothing: it must not keep the node alive.
due() {
    moment=
    [ -f "$kept/expires-at" ] && read -r moment < "$kept/expires-at"
    is_allowed "$moment" || moment=$deadline
    echo "$moment"
}

# The file comes before the timer: cut off in between, the node ends by its old timer, and by the file after a reboot.
extend() {
    if ! is_allowed "$1"; then
        echo "cloudgpu: this node cannot live until $1: $latest at most" >&2
        exit 4
    fi
    printf '%s\n' "$1" > "$kept/expires-at.new" && sync "$kept/expires-at.new" &&
        mv "$kept/expires-at.new" "$kept/expires-at" && sync "$kept" || exit 5
}

# No default dependencies and no waiting: this early the targets that a timer waits for wait for this script.
arm() {
    systemctl is-active --quiet "$unit.timer" 2>/dev/null && return
    calendar=$(date -u -d "@$end" '+%Y-%m-%d %H:%M:%S UTC') || calendar='2026-11-21 05:00:00 UTC'
    systemd-run --no-block --unit="$unit" --on-calendar="$calendar" \
        --timer-property=AccuracySec=1s --timer-property=DefaultDependencies=no --property=DefaultDependencies=no \
        systemctl poweroff && return
    # No systemd to ask: a detached loop does the same, and sees an extension by itself.
    (
        trap '' HUP
        while now=$(date -u +%s) && end=$(due) && [ "$now" -lt "$end" ]; do
            left=$((end - now))
            [ "$left" -gt 15 ] && left=15
            sleep "$left"
        done
        end_now
    ) </dev/null >/dev/null 2>&1 &
}

# Only after the new timer is armed: there is no moment without one.
disarm_others() {
    for word in $(systemctl list-timers --all --no-legend --no-pager 'cloudgpu-expiry-*' 2>/dev/null); do
        case $word in
            "$unit.timer") ;;
            cloudgpu-expiry-*.timer) systemctl stop "$word" ;;
        esac
    done
}

if [ $# -gt 0 ]; then
    extend "$1"
fi
end=$(due)
if [ "$(date -u +%s)" -ge "$end" ]; then
    end_now
    exit 0
fi
unit=cloudgpu-expiry-$end
arm
if [ $# -gt 0 ]; then
    disarm_others
elif mkdir -p "$kept" && cp "$0" "$kept/expiry.new"; then
    # For an extension, which runs this very text again.
    mv "$kept/expiry.new" "$kept/expiry"
fi
echo "cloudgpu: this node ends itself at $end"
exit 0
"""


def test_expiry_hook_matches_the_golden_text() -> None:
    assert expiry_hook(EXPIRES) == GOLDEN_HOOK


def test_user_data_has_the_expiry_hook_before_unchanged_bootstrap() -> None:
    bootstrap = "#!/bin/sh\n# Gr\u00fc\u00dfe\nexport X='a \"b\"'\necho --cloudgpu-- done\n"
    message = email.message_from_bytes(user_data(EXPIRES, bootstrap).encode())
    assert [part.get_content_type() for part in message.get_payload()] == [
        "text/cloud-boothook",
        "text/x-shellscript",
    ]
    texts = [part.get_payload(decode=True).decode() for part in message.get_payload()]
    assert texts == [GOLDEN_HOOK, bootstrap]


def test_user_data_without_bootstrap_has_one_part() -> None:
    assert len(email.message_from_string(user_data(EXPIRES, "")).get_payload()) == 1


def test_user_data_is_deterministic_for_equal_settings() -> None:
    assert user_data(EXPIRES, "echo hi\n") == user_data(EXPIRES, "echo hi\n")


def test_user_data_over_the_ec2_limit_is_rejected() -> None:
    room = 16384 - len(user_data(EXPIRES, "x").encode()) + 1
    assert len(user_data(EXPIRES, "x" * room).encode()) == 16384
    with pytest.raises(UserDataTooLongError, match="16385 bytes"):
        user_data(EXPIRES, "x" * (room + 1))


def shells() -> list[str]:
    return [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


@pytest.mark.parametrize("shell", shells())
def test_expiry_hook_is_valid_in_every_installed_shell(shell: str) -> None:
    argv = [shell, "sh", "-n"] if shell == "busybox" else [shell, "-n"]
    subprocess.run(argv, input=expiry_hook(EXPIRES), text=True, check=True)


def epoch(at: datetime) -> str:
    return str(int(at.timestamp()))


class Stand:
    """A directory that is the entire PATH, so that the hook cannot reach the machine, and a clock for tests."""

    def __init__(self, root: Path) -> None:
        self.root, self.log, self.reads = root, root / "log", root / "reads"
        for real in ("date", "sleep"):
            (root / f"real-{real}").symlink_to(shutil.which(real))
        clock = '[ "$*" = "-u +%s" ] || exec real-date "$@"\n'
        clock += f'echo >> "{self.reads}"\nread -r now < "{root}/now"\necho "$now"'
        for name, body in (("date", clock), ("sleep", "exec real-sleep 0.02")):
            (root / name).write_text(f"#!/bin/sh\n{body}\n")
            (root / name).chmod(0o755)
        self.set_clock(NOW)

    def set_clock(self, now: datetime) -> None:
        """Set the clock, in one step because a detached loop may read it at any time."""
        (self.root / "new").write_text(f"{epoch(now)}\n")
        (self.root / "new").replace(self.root / "now")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def wait_for_loop(self) -> None:
        """Wait until a detached loop has acted on the clock as it is now."""
        seen = self.reads.stat().st_size
        self.wait_until(lambda: self.reads.stat().st_size >= seen + 3)

    def command(self, name: str, body: str) -> None:
        path = self.root / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.log}"\n{body}\n')
        path.chmod(0o755)

    def boot(self, expires_at: datetime) -> None:
        hook = self.root / "hook"
        hook.write_text(expiry_hook(expires_at))
        self.run(hook)

    def run(self, program: Path, *args: str, code: int = 0) -> str:
        env = {"PATH": str(self.root), "CLOUDGPU_NODE_ROOT": str(self.root)}
        argv = ["/bin/sh", program, *args]
        done = subprocess.run(argv, env=env, timeout=20, capture_output=True, text=True, check=False)
        assert done.returncode == code, done
        return done.stdout

    @property
    def kept(self) -> Path:
        return self.root / "var" / "lib" / "cloudgpu"

    def with_disk(self) -> "Stand":
        for real in ("mkdir", "cp", "mv", "sync"):
            (self.root / real).symlink_to(shutil.which(real))
        return self

    def said(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


def test_boot_after_expiry_powers_off_immediately(stand: Stand) -> None:
    stand.command("systemctl", "exit 0")
    stand.boot(NOW - timedelta(seconds=1))
    assert stand.said() == ["systemctl poweroff"]


def test_every_power_off_command_is_tried(stand: Stand) -> None:
    for name in ("systemctl", "shutdown"):
        stand.command(name, "exit 1")
    stand.command("poweroff", "exit 0")
    stand.boot(NOW - timedelta(hours=1))
    assert stand.said() == ["systemctl poweroff", "shutdown -h now", "poweroff -f"]


def test_boot_before_expiry_arms_a_timer_for_absolute_time(stand: Stand) -> None:
    stand.command("systemctl", "exit 3")
    stand.command("systemd-run", "exit 0")
    expires_at = IN_AN_HOUR
    stand.boot(expires_at)
    armed = stand.said()[-1]
    assert f"--unit=cloudgpu-expiry-{int(expires_at.timestamp())} " in armed
    assert f"--on-calendar={expires_at:%Y-%m-%d %H:%M:%S} UTC" in armed
    assert armed.endswith("systemctl poweroff")


def test_second_hook_run_arms_no_second_timer(stand: Stand) -> None:
    stand.command("systemctl", "exit 0")
    stand.command("systemd-run", "exit 0")
    stand.boot(IN_AN_HOUR)
    assert [line.partition(" ")[0] for line in stand.said()] == ["systemctl"]
    assert stand.said()[0].startswith("systemctl is-active --quiet cloudgpu-expiry-")


def test_detached_loop_replaces_the_timer_without_systemd(stand: Stand) -> None:
    stand.command("shutdown", "exit 0")
    stand.boot(IN_AN_HOUR)
    stand.set_clock(IN_AN_HOUR - timedelta(seconds=1))
    stand.wait_for_loop()
    assert stand.said() == []
    stand.set_clock(IN_AN_HOUR)
    stand.wait_until(stand.said)
    assert stand.said() == ["shutdown -h now"]


@pytest.fixture
def armed(stand: Stand) -> tuple[Stand, datetime]:
    """A node that has booted and armed its timer with systemd."""
    expires_at = IN_AN_HOUR
    timers = f'[ "$1" = list-timers ] && echo "Sat 2026 cloudgpu-expiry-{epoch(expires_at)}.timer x.service"'
    stand.with_disk().command("systemctl", f'{timers}\n[ "$1" != is-active ]')
    stand.command("systemd-run", "exit 0")
    stand.boot(expires_at)
    stand.log.unlink()
    return stand, expires_at


def test_extension_is_saved_and_armed_before_the_old_timer_stops(armed) -> None:
    stand, expires_at = armed
    later = expires_at + timedelta(hours=1)
    said = stand.run(stand.kept / "expiry", epoch(later))
    assert said == f"cloudgpu: this node ends itself at {epoch(later)}\n"
    assert (stand.kept / "expires-at").read_text() == f"{epoch(later)}\n"
    words = [line.split() for line in stand.said() if "is-active" not in line and "list-timers" not in line]
    assert [line[0] for line in words] == ["systemd-run", "systemctl"]
    assert f"--unit=cloudgpu-expiry-{epoch(later)}" in words[0]
    assert words[1][1:] == ["stop", f"cloudgpu-expiry-{epoch(expires_at)}.timer"]


def test_reboot_arms_the_timer_of_the_saved_extension(armed) -> None:
    stand, expires_at = armed
    later = expires_at + timedelta(hours=1)
    stand.run(stand.kept / "expiry", epoch(later))
    stand.boot(expires_at)
    assert f"--on-calendar={later:%Y-%m-%d %H:%M:%S} UTC" in stand.said()[-1]


@pytest.mark.parametrize("rubbish", ["", "soon", "99999999999999999999", "-5", "1", "{later}9", "0x7fffffff"])
def test_damaged_expiry_file_falls_back_to_the_launch_expiry(armed, rubbish: str) -> None:
    stand, expires_at = armed
    (stand.kept / "expires-at").write_text(rubbish.format(later=epoch(expires_at)))
    stand.boot(expires_at)
    assert f"--on-calendar={expires_at:%Y-%m-%d %H:%M:%S} UTC" in stand.said()[-1]


@pytest.mark.parametrize("beyond", [EXTENDABLE + timedelta(seconds=1), -timedelta(seconds=1)])
def test_extension_outside_the_launch_limits_is_rejected(armed, beyond: timedelta) -> None:
    stand, expires_at = armed
    stand.run(stand.kept / "expiry", epoch(expires_at + beyond), code=4)
    assert not (stand.kept / "expires-at").exists()
    assert stand.said() == []
    stand.run(stand.kept / "expiry", epoch(expires_at + EXTENDABLE))


def test_old_timer_stays_armed_if_saving_the_extension_fails(armed) -> None:
    stand, expires_at = armed
    (stand.root / "sync").unlink()
    stand.run(stand.kept / "expiry", epoch(expires_at + timedelta(hours=1)), code=5)
    assert stand.said() == []


def test_detached_loop_honors_an_extension_without_systemd(stand: Stand) -> None:
    stand.with_disk().command("shutdown", "exit 0")
    stand.boot(IN_AN_HOUR)
    later = IN_AN_HOUR + timedelta(hours=1)
    stand.run(stand.kept / "expiry", epoch(later))
    stand.set_clock(IN_AN_HOUR)
    stand.wait_for_loop()
    assert stand.said() == []
    stand.set_clock(later)
    # Two loops: of the boot and of the extension.
    stand.wait_until(lambda: len(stand.said()) == 2)
    assert set(stand.said()) == {"shutdown -h now"}


def test_hook_tests_cannot_reach_real_power_commands(stand: Stand) -> None:
    names = ("systemctl", "shutdown", "poweroff", "systemd-run")
    assert [name for name in names if shutil.which(name, path=os.fspath(stand.root))] == []
