"""`infra/` is a valid Pulumi project: errors that the real CLI reports in its project file are found here too."""

import os
import shutil
import subprocess

import pytest
from ruamel.yaml import YAML

from cloudgpu.paths import bundled_folder


def project() -> dict:
    return YAML(typ="safe").load((bundled_folder("infra") / "Pulumi.yaml").read_text())


def test_project_file_declares_a_python_program():
    found = project()
    assert found["name"] == "cloudgpu"
    assert found["runtime"] == {"name": "python"} or found["runtime"] == "python"
    assert (bundled_folder("infra") / "__main__.py").is_file()


def test_settings_of_other_namespaces_have_values():
    # The CLI rejects a project whose `aws:...` settings have a description but no value.
    for key, body in (project().get("config") or {}).items():
        if ":" in key and not key.startswith("cloudgpu:"):
            assert "value" in body, key


@pytest.mark.pulumi
@pytest.mark.skipif(shutil.which("pulumi") is None, reason="the Pulumi CLI is not on the PATH")
def test_pulumi_cli_reads_the_project(tmp_path):
    copy = tmp_path / "infra"
    shutil.copytree(bundled_folder("infra"), copy, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "state").mkdir()
    environment = {
        **os.environ,
        "PULUMI_HOME": str(tmp_path / "pulumi"),
        "PULUMI_BACKEND_URL": f"file://{tmp_path}/state",
        "PULUMI_CONFIG_PASSPHRASE": "test",
        "PULUMI_SKIP_UPDATE_CHECK": "1",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }
    for command in (["stack", "init", "dev"], ["config", "set", "cloudgpu:cluster", "demo"], ["config"]):
        done = subprocess.run(
            ["pulumi", *command, "--non-interactive"],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
