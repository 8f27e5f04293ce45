"""Pack the bootstrap script into a self-extracting script, because EC2 limits user data to 16 KiB."""

import base64
import gzip
import re
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
_COLUMNS = 900
"""Few line feeds, because they count toward the limit, too; MIME allows 998 characters a line."""
_COMMENT_LINE = re.compile(r"^[ \t]*#(?!!).*\n", re.MULTILINE)


def pack_script(script: str) -> str:
    """Return a shell script that unpacks and runs `script`. The same input always produces the same output.

    Comment lines are left out, because they would take about an eighth of EC2's limit.
    """
    encoded = base64.b64encode(gzip.compress(without_comments(script).encode(), compresslevel=9, mtime=0)).decode()
    return _UNPACKER.format(packed="\n".join(textwrap.wrap(encoded, _COLUMNS)))


def without_comments(script: str) -> str:
    """Return the script without lines that are only a comment. Here-documents must not contain such lines as data."""
    return _COMMENT_LINE.sub("", script)
