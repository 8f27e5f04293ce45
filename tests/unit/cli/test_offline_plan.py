"""An offline plan imports no packages that are needed only to call a cloud."""

import subprocess
import sys

CLOUDS = ("asyncssh", "boto3", "botocore", "moto", "paramiko", "pulumi", "rich", "sqlalchemy")
PROGRAM = f"""
import sys
from cloudgpu.cli.main import main
main(["plan", "quickstart", "--offline", "--on", "rehearsal", "--explain"])
print("LOADED", *sorted(set(sys.modules) & set({CLOUDS!r})))
"""


def test_offline_plan_imports_no_cloud_packages(tmp_path):
    """This keeps it under 0.6 s; importing boto3 alone takes half of that."""
    env = {"PATH": "/usr/bin:/bin", "CLOUDGPU_HOME": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "accepted: 2" in done.stdout
    assert done.stdout.splitlines()[-1] == "LOADED"
