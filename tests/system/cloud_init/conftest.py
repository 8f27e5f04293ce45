"""A scratch machine with the Debian package cloud-init, which never touches this machine's own settings."""

import os
import shutil

import pytest

from tests.system.cloud_init import machine


@pytest.fixture(scope="session", autouse=True)
def cloud_init_is_there():
    missing = [tool for tool in ("unshare", "ip", "setpriv", "chroot") if not shutil.which(tool, path=machine.TOOLS)]
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    if not (machine.UNPACKED / "usr/bin/cloud-init").exists():
        pytest.skip("needs the Debian package cloud-init: scripts/test-parts")
