"""A group that the login user gets while connected, as the bootstrap adds it to `docker`: the check logs in again."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.run.agent import install_agent
from cloudgpu.run.node_health import check_nodes
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.connection import connect

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace and for another login user"),
]

USER, USER_ID, GROUP_ID = "cloudgpu-login", 64320, "64321"
OWN_USERS = (
    *("unshare", "--mount", "sh", "-c"),
    'mount --bind "$0/group" /etc/group && mount --bind "$0/passwd" /etc/passwd && exec "$@"',
)
"""Runs the server with a user database of its own, so that the machine's stays as it is."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the login user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="cloudgpu-groups-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_group_that_is_added_after_the_login_applies_after_the_check(start_sshd, place: Path) -> None:
    home, root = place / "sshd/home", place / "root"
    for folder in (home, root / "var/lib/cloudgpu"):
        folder.mkdir(parents=True)
    os.chown(home, USER_ID, USER_ID)
    (root / "var/lib/cloudgpu/bootstrap.json").write_text(json.dumps({"state": "done"}))
    users, groups = (Path(f"/etc/{name}").read_text() for name in ("passwd", "group"))
    (place / "passwd").write_text(f"{users}{USER}:*:{USER_ID}:{USER_ID}::{home}:/bin/sh\n")
    groups += f"{USER}:x:{USER_ID}:\ncloudgpu-docker:x:{GROUP_ID}:"
    (place / "group").write_text(f"{groups}\n")
    server = start_sshd(place / "sshd", launcher=(*OWN_USERS, str(place)), environment=f"CLOUDGPU_NODE_ROOT={root}")
    try:
        with connect(server.node(user=USER, gpus=0), server.key, clock=SystemClock()) as host:
            agent = install_agent(host)

            def is_member() -> bool:
                return GROUP_ID in host.run(RemoteCommand("id", "-G")).stdout.split()

            assert not is_member()
            (place / "group").write_text(f"{groups}{USER}\n")
            assert not is_member(), "the server sets the groups of a connection at login"
            notes = []
            check_nodes([agent], SystemClock(), notes.append)
            expected = "logging in again, because the bootstrap added the login user to cloudgpu-docker"
            assert [note.text for note in notes] == [expected]
            assert is_member()
            check_nodes([agent], SystemClock(), notes.append)
            assert len(notes) == 1, "once is enough"
    finally:
        server.kill()
