"""What a node runs at boot. Pure text, nothing secret: anybody on the node can read it."""

import hashlib
from datetime import datetime

_LIMIT_BYTES = 16384
"""EC2's own limit on user data, before base64."""

_EXPIRY = """\
#!/bin/sh
# Runs at every boot, before drivers, network mounts and SSH: this node ends itself at {utc}.
deadline={epoch}

end_now() {{
    systemctl poweroff || shutdown -h now || poweroff -f
}}

if [ "$(date -u +%s)" -ge "$deadline" ]; then
    end_now
    exit 0
fi

if systemctl is-active --quiet cloudgpu-expiry.timer 2>/dev/null; then
    exit 0
fi

# No default dependencies and no waiting: this early the targets that a timer waits for wait for this script.
if systemd-run --no-block --unit=cloudgpu-expiry --on-calendar='{calendar}' \\
    --timer-property=AccuracySec=1s --timer-property=DefaultDependencies=no --property=DefaultDependencies=no \\
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


class UserDataTooLongError(ValueError):
    """The rendered text exceeds what EC2 accepts."""


def expiry_hook(expires_at: datetime) -> str:
    """The boot hook that powers the node off at an absolute UTC time."""
    return _EXPIRY.format(
        utc=expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        epoch=int(expires_at.timestamp()),
        calendar=expires_at.strftime("%Y-%m-%d %H:%M:%S UTC"),
    )


def user_data(expires_at: datetime, bootstrap: str) -> str:
    """The whole MIME text: the expiry first, then the bootstrap script if there is one.

    Raises:
        UserDataTooLongError: EC2 would refuse it.
    """
    parts = [("text/cloud-boothook", "expiry.sh", expiry_hook(expires_at))]
    if bootstrap:
        parts.append(("text/x-shellscript", "bootstrap.sh", bootstrap))
    text = _multipart(parts)
    size = len(text.encode())
    if size > _LIMIT_BYTES:
        message = f"user data has {size} bytes, EC2 accepts {_LIMIT_BYTES}: shorten the bootstrap script"
        raise UserDataTooLongError(message)
    return text


def _multipart(parts: list[tuple[str, str, str]]) -> str:
    """The boundary comes from the content, so the same settings always give the same bytes."""
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
