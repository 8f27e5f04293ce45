"""Use Docker, through `sg`, in a login session that predates the user's membership in the docker group."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shlex
import shutil
import sys
from typing import Any

_ENTERED = "CLOUDGPU_AGENT_ENTERED"
_UNIX = "unix://"


def restart_with_docker_group(host: str, verb: str, spec: dict[str, Any]) -> None:
    """Restart this verb with the socket's group if the user is a member but this login session lacks the group.

    The node's bootstrap adds the user to the group, possibly after this session started. If a restart is unnecessary or
    impossible, this function returns; otherwise it never returns.
    """
    path = host[len(_UNIX) :]
    if _ENTERED in os.environ or not os.path.exists(path) or os.access(path, os.R_OK | os.W_OK):
        return
    try:
        group, user = grp.getgrgid(os.stat(path).st_gid), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return
    tool = shutil.which("sg")
    if tool is None or user not in group.gr_mem:
        return
    # The request may contain secrets, so it is passed on in memory only.
    request = os.memfd_create("request")
    os.write(request, json.dumps(spec).encode())
    os.lseek(request, 0, os.SEEK_SET)
    os.dup2(request, 0)
    os.environ[_ENTERED] = "1"
    os.execv(tool, [tool, group.gr_name, "-c", shlex.join([sys.executable, sys.argv[0], verb])])
