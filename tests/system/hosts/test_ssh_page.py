"""Run the commands of docs/tutorials/own-hosts.md unchanged on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation import blocks_for
from tests.hosts.lab import missing_tools


def commands() -> str:
    return "\n".join(blocks_for(__file__, "docs/tutorials/own-hosts.md"))


def test_own_hosts_tutorial_commands_work(tmp_path: Path):
    missing = missing_tools()
    if missing:
        reason = f"the page needs {', '.join(missing)}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    script = tmp_path / "page.sh"
    # The page runs in its own namespaces. Its network, its /run and its processes disappear with them.
    setup = "mount --make-rprivate /; mount -t tmpfs tmpfs /run; ip link set lo up; mkdir -p $HOME\n"
    # The SSH servers are children of the script, so `wait` returns when they have exited.
    checks = 'test -z "$(ip netns list)"\nif ip link show lab; then exit 1; fi\ntest ! -e /run/cloudgpu-lab\nwait\n'
    script.write_text(f"set -eu\n{setup}{commands()}\n{checks}echo the page is done\n")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "cloudgpu").write_text(f'#!/bin/sh\nexec {sys.executable} -m cloudgpu "$@"\n')
    (bin_folder / "cloudgpu").chmod(0o755)
    own = {"CLOUDGPU_HOME": str(tmp_path / "state"), "CLOUDGPU_OWNER": "ann", "HOME": str(tmp_path / "me")}
    path = f"{bin_folder}:{os.environ['PATH']}:/usr/sbin:/sbin"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", str(script)],
        env={**os.environ, **own, "PATH": path}, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said = done.stdout
    assert said.endswith("the page is done\n")
    assert "written to hosts.yaml: red: host_key, gpus, driver, cores, memory" in said
    assert "2 hosts with 2 x T4 16 GiB each" in said
    assert "heard from 3 others" in said
    assert "succeeded" in said
    assert "cluster mine is deleted, confirmed by its hosts; nothing is left on red, blue" in said
    assert said.count("2 x Tesla T4, driver 580.126.09, 2 free") == 6
