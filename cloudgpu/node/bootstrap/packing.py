"""Pack the bootstrap script into a self-extracting script, because EC2 limits user data to 16 KiB."""

import base64
import gzip
import textwrap

_UNPACKER = """\
#!/bin/sh
# The compressed bootstrap of this node, which is unpacked to /var/lib/cloudgpu/bootstrap.sh.
state_dir=${{CLOUDGPU_NODE_ROOT:-}}/var/lib/cloudgpu
umask 022
mkdir -p "$state_dir" || exit 1
base64 -d <<'PACKED' | gzip -dc >"$state_dir/bootstrap.sh.new" || exit 1
{packed}
PACKED
mv -f "$state_dir/bootstrap.sh.new" "$state_dir/bootstrap.sh" || exit 1
exec sh "$state_dir/bootstrap.sh"
"""
_COLUMNS = 120


def pack_script(script: str) -> str:
    """Return a compressed shell script that runs `script`. The result is deterministic."""
    encoded = base64.b64encode(gzip.compress(script.encode(), compresslevel=9, mtime=0)).decode()
    return _UNPACKER.format(packed="\n".join(textwrap.wrap(encoded, _COLUMNS)))
