"""An offline plan imports no packages that are needed only to call a cloud."""

import subprocess
import sys

from cloudgpu.cli.main import main

CLOUDS = ("asyncssh", "boto3", "botocore", "moto", "paramiko", "pulumi", "rich", "sqlalchemy")
PROGRAM = f"""
import sys
from cloudgpu.cli.main import main
main(["plan", "quickstart", "--offline", "--on", "rehearsal", "--explain"])
print("LOADED", *sorted(set(sys.modules) & set({CLOUDS!r})))
"""


def test_plan_without_credentials_names_the_offline_option(home, monkeypatch, tmp_path, capsys):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert main(["plan", "quickstart", "--on", "aws"]) == 8
    shown = capsys.readouterr().err
    assert "no AWS credentials were found" in shown
    assert shown.rstrip().endswith("; to plan with the catalog alone, add --offline")


def test_offline_plan_imports_no_cloud_packages(tmp_path):
    """This keeps it under 0.6 s; importing boto3 alone takes half of that."""
    env = {"PATH": "/usr/bin:/bin", "CLOUDGPU_HOME": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "accepted: 2" in done.stdout
    assert done.stdout.splitlines()[-1] == "LOADED"
