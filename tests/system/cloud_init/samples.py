"""User data of nodes, and malformed user data."""

import base64
import gzip
from datetime import UTC, datetime

from cloudgpu.node.bootstrap import NodeKind, bootstrap_script, pack_script
from gpu_cluster.user_data import expiry_hook, user_data

EXPIRY = datetime(2099, 1, 1, tzinfo=UTC)
SCRIPT = "#!/bin/sh\necho script"
HOOK = "#cloud-boothook\n#!/bin/sh\necho hook"


def mime(
    *parts: tuple[str, str], head: str = "MIME-Version: 1.0\n", boundary: str = "XX", end: str = "\n--XX--\n"
) -> str:
    """A MIME message with a header block and a body for each part."""
    text = "".join(f"\n--{boundary}\n{headers}\n\n{body}" for headers, body in parts)
    return f'Content-Type: multipart/mixed; boundary="XX"\n{head}{text}{end}'


def part(kind: str, body: str, name: str = "", encoding: str = "") -> tuple[str, str]:
    lines = [f"Content-Type: {kind}"]
    lines += [f'Content-Disposition: attachment; filename="{name}"'] if name else []
    lines += [f"Content-Transfer-Encoding: {encoding}"] if encoding else []
    return "\n".join(lines), body


SHELL, HOOKS, CONFIG = "text/x-shellscript", "text/cloud-boothook", "text/cloud-config"
TWO = mime(part(HOOKS, "#!/bin/sh\necho hook", "hook.sh"), part(SHELL, SCRIPT, "script.sh"))
GPU = NodeKind("V100", "Volta", efa=True, containers=True)
PACKED = base64.b64encode(SCRIPT.encode()).decode()
OURS = {
    "plain": user_data(EXPIRY, bootstrap_script(NodeKind("", ""))).encode(),
    "gpu": user_data(
        EXPIRY, pack_script(bootstrap_script(NodeKind("V100", "Volta", efa=True, containers=True)))
    ).encode(),
    "expiry-only": user_data(EXPIRY, "").encode(),
    "expiry-script": expiry_hook(EXPIRY).encode(),
}
MALFORMED: dict[str, bytes] = {
    name: text.encode() if isinstance(text, str) else text
    for name, text in {
        "two-parts": TWO,
        "no-mime-header": mime(part(SHELL, SCRIPT, "script.sh"), head=""),
        "mime-header-late": "x: " + "y" * 5000 + "\n" + TWO,
        "wrong-boundary": mime(part(SHELL, SCRIPT, "script.sh"), boundary="YY"),
        "duplicate-boundary": TWO.replace("\n--XX\n", "\n--XX\n--XX\n", 1),
        "no-closing-boundary": mime(part(SHELL, SCRIPT, "script.sh"), end=""),
        "truncated-headers": TWO[: TWO.index("Content-Disposition", 120) + 30],
        "truncated-body": TWO[:-20],
        "text-before-and-after": TWO.replace("\n--XX", "\nbefore\n--XX", 1) + "after\n",
        "base64": mime(part(SHELL, PACKED, "script.sh", "base64")),
        "bad-base64": mime(part(SHELL, "%%%" + PACKED[:-3], "script.sh", "base64")),
        "base64-of-all": base64.b64encode(TWO.encode()),
        "quoted-printable": mime(part(SHELL, "#!/bin/sh\necho a=3Db=\nc", "script.sh", "quoted-printable")),
        "unknown-encoding": mime(part(SHELL, SCRIPT, "script.sh", "rot13")),
        "gzip": gzip.compress(TWO.encode()),
        "gzip-script": gzip.compress(SCRIPT.encode()),
        "gzip-truncated": gzip.compress(TWO.encode())[:-20],
        "gzip-part": mime(
            part("application/gzip", base64.b64encode(gzip.compress(SCRIPT.encode())).decode(), "a.sh", "base64")
        ),
        "gzip-part-damaged": mime(part("application/x-gzip", PACKED, "a.sh", "base64"), part(SHELL, SCRIPT, "b.sh")),
        "unknown-type": mime(part("application/octet-stream", SCRIPT, "a.sh"), part(SHELL, SCRIPT, "b.sh")),
        "plain-types": mime(part("text/plain", SCRIPT, "a.sh"), part("text/plain", HOOK, "b.sh")),
        "no-type": mime(("X-Other: y", SCRIPT)),
        "script-without-mark": mime(part(SHELL, "echo script", "a.sh")),
        "script-that-is-a-hook": mime(part(SHELL, HOOK, "a.sh")),
        "hook-with-blank-lines": "#cloud-boothook\n\n\n#!/bin/sh\necho hook\n",
        "hook-in-capitals": "#CLOUD-BOOTHOOK\n#!/bin/sh\necho hook\n",
        "leading-blank-lines": "\n\n" + SCRIPT,
        "crlf-script": SCRIPT.replace("\n", "\r\n"),
        "crlf-mime": TWO.replace("\n", "\r\n"),
        "crlf-later": "#!/bin/sh\necho a\r\necho b\r\n",
        "empty": b"",
        "blank": b" \n",
        "empty-part": mime(part(SHELL, "", "a.sh"), part(SHELL, SCRIPT, "b.sh")),
        "no-parts": mime(),
        "latin-1-script": b"#!/bin/sh\necho \xe9",
        "latin-1-mime": TWO.encode().replace(b"echo script", b"echo \xe9"),
        "utf-8-script": "#!/bin/sh\necho \u00e9\u20ac",
        "utf-8-mime": TWO.replace("echo script", "echo \u00e9\u20ac"),
        "utf-8-base64": mime(
            part(SHELL, base64.b64encode("#!/bin/sh\necho \u20ac".encode()).decode(), "a.sh", "base64")
        ),
        "bad-cloud-config": "#cloud-config\n: [",
        "cloud-config-then-script": mime(part(CONFIG, "#cloud-config\n: [", "c.cfg"), part(SHELL, SCRIPT, "b.sh")),
        "script-that-is-config": mime(part(SHELL, "#cloud-config\npackages: [x]", "a.sh")),
        "unnamed": mime(part(SHELL, SCRIPT), part(HOOKS, HOOK), part(SHELL, SCRIPT + " 2")),
        "same-names": mime(part(SHELL, SCRIPT, "a.sh"), part(SHELL, SCRIPT + " 2", "a.sh")),
        "names-out-of-order": mime(part(SHELL, SCRIPT, "b.sh"), part(SHELL, SCRIPT + " 2", "a.sh")),
        "odd-names": mime(
            part(SHELL, SCRIPT, "../a b\u00e9.sh"), part(SHELL, SCRIPT, ".."), part(SHELL, SCRIPT, "***")
        ),
        "nested": mime(
            (
                'Content-Type: multipart/mixed; boundary="ZZ"',
                f"\n--ZZ\nContent-Type: {SHELL}\n\n{SCRIPT}\n--ZZ--\n",
            ),
            part(SHELL, SCRIPT, "b.sh"),
        ),
        "message-part": mime(("Content-Type: message/rfc822", f"Content-Type: {SHELL}\n\n{SCRIPT}")),
        "unknown-text": "hello",
        "binary": bytes(range(256)),
    }.items()
}
