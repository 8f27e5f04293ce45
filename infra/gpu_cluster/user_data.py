"""The user data that a node runs at boot. It contains no secrets, because every user on the node can read it."""

import hashlib
from datetime import datetime, timedelta

_LIMIT_BYTES = 16384
"""EC2's limit on the size of user data before base64 encoding."""

EXTENDABLE = timedelta(days=14)
"""Maximum time by which `extend` can move a node's expiry beyond the original expiry, which is fixed at launch."""

_EXPIRY = """\
#!/bin/sh
# Runs at every boot, before drivers, network mounts and SSH: this node ends itself at {utc},
# or at a later moment, {latest_utc} at most, that an extension has left in a file on its disk.
deadline={epoch}
latest={latest}
kept="${{CLOUDGPU_NODE_ROOT:-}}/var/lib/cloudgpu"

end_now() {{
    systemctl poweroff || shutdown -h now || poweroff -f
}}

# A plain number of seconds between the two; longer ones would overflow the comparison.
is_allowed() {{
    case $1 in
        '' | *[!0-9]* | ????????????*) return 1 ;;
    esac
    [ "$1" -ge "$deadline" ] && [ "$1" -le "$latest" ]
}}

# A damaged file counts for nothing: it must not keep the node alive.
due() {{
    moment=
    [ -f "$kept/expires-at" ] && read -r moment < "$kept/expires-at"
    is_allowed "$moment" || moment=$deadline
    echo "$moment"
}}

# The file comes before the timer: cut off in between, the node ends by its old timer, and by the file after a reboot.
extend() {{
    if ! is_allowed "$1"; then
        echo "cloudgpu: this node cannot live until $1: $latest at most" >&2
        exit 4
    fi
    printf '%s\\n' "$1" > "$kept/expires-at.new" && sync "$kept/expires-at.new" &&
        mv "$kept/expires-at.new" "$kept/expires-at" && sync "$kept" || exit 5
}}

# No default dependencies and no waiting: this early the targets that a timer waits for wait for this script.
arm() {{
    systemctl is-active --quiet "$unit.timer" 2>/dev/null && return
    calendar=$(date -u -d "@$end" '+%Y-%m-%d %H:%M:%S UTC') || calendar='{calendar}'
    systemd-run --no-block --unit="$unit" --on-calendar="$calendar" \\
        --timer-property=AccuracySec=1s --timer-property=DefaultDependencies=no --property=DefaultDependencies=no \\
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
}}

# Only after the new timer is armed: there is no moment without one.
disarm_others() {{
    for word in $(systemctl list-timers --all --no-legend --no-pager 'cloudgpu-expiry-*' 2>/dev/null); do
        case $word in
            "$unit.timer") ;;
            cloudgpu-expiry-*.timer) systemctl stop "$word" ;;
        esac
    done
}}

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


class UserDataTooLongError(ValueError):
    """The rendered user data exceeds EC2's size limit."""


def expiry_hook(expires_at: datetime) -> str:
    """Return the boot hook that powers the node off at an absolute UTC time."""
    latest = expires_at + EXTENDABLE
    return _EXPIRY.format(
        utc=expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        latest_utc=latest.strftime("%Y-%m-%dT%H:%M:%SZ"),
        epoch=int(expires_at.timestamp()),
        latest=int(latest.timestamp()),
        calendar=expires_at.strftime("%Y-%m-%d %H:%M:%S UTC"),
    )


def user_data(expires_at: datetime, bootstrap: str) -> str:
    """Return the user data as MIME text: the expiry hook, then the bootstrap script if there is one."""
    parts = [("text/cloud-boothook", "expiry.sh", expiry_hook(expires_at))]
    if bootstrap:
        parts.append(("text/x-shellscript", "bootstrap.sh", bootstrap))
    text = _multipart(parts)
    size = len(text.encode())
    if size > _LIMIT_BYTES:
        message = f"the user data is {size} bytes, but EC2 accepts at most {_LIMIT_BYTES}: shorten the bootstrap script"
        raise UserDataTooLongError(message)
    return text


def _multipart(parts: list[tuple[str, str, str]]) -> str:
    """Join the parts. The boundary is derived from the content, so that equal settings produce equal user data."""
    digest = hashlib.sha256("\0".join(body for _, _, body in parts).encode()).hexdigest()
    boundary = f"cloudgpu-{digest[:24]}"
    lines = ["MIME-Version: 1.0", f'Content-Type: multipart/mixed; boundary="{boundary}"', ""]
    for content_type, name, body in parts:
        lines += [
            f"--{boundary}",
            f'Content-Type: {content_type}; charset="utf-8"',
            "MIME-Version: 1.0",
            "Content-Transfer-Encoding: 8bit",
            f'Content-Disposition: attachment; filename="{name}"',
            "",
            body.rstrip("\n") + "\n",
        ]
    return "\n".join([*lines, f"--{boundary}--", ""])
