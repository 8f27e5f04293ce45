"""Skip the tests of cloud-init on machines that cannot run it in a separate root file system."""

import os
import shutil

import pytest

from tests.system.cloud_init import machine


@pytest.fixture(scope="session", autouse=True)
def require_cloud_init():
    """Skip all tests if cloud-init or a tool is missing."""
    missing = [tool for tool in ("unshare", "ip", "setpriv", "chroot") if not shutil.which(tool, path=machine.TOOLS)]
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    if not (machine.UNPACKED / "usr/bin/cloud-init").exists():
        pytest.skip("needs the Debian package cloud-init: scripts/test-parts")
