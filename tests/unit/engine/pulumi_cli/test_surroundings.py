"""Files, environment and program of the CLI, isolated from the user's own Pulumi settings."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError

import pytest

from cloudgpu.aws.session.session import CloudEndpoint
from cloudgpu.engine.base import Stack
from cloudgpu.engine.pulumi_cli import installation
from cloudgpu.engine.pulumi_cli.engine import cli_environment
from cloudgpu.engine.pulumi_cli.installation import Layout, find_pulumi_cli, install, stack_name
from cloudgpu.errors import ConnectError, StateError, UsageError
from cloudgpu.paths import bundled_folder
from cloudgpu.processes import process_start

THEIRS = {
    "PULUMI_HOME": "/theirs/.pulumi",
    "PULUMI_BACKEND_URL": "s3://theirs",
    "PULUMI_CONFIG_PASSPHRASE": "theirs",
    "PULUMI_ACCESS_TOKEN": "pul-theirs",
    "PULUMI_STACK": "theirs",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ENDPOINT_URL_EC2": "http://127.0.0.1:1",
    "AWS_PROFILE": "theirs",
    "AWS_SESSION_TOKEN": "theirs",
    "PATH": "/usr/bin",
    "HOME": "/theirs",
}
HERE = CloudEndpoint("http://127.0.0.1:4566", "KEY", "SECRET")


@pytest.fixture
def stack(tmp_path):
    config = {"token": "0123456789abcdef"}
    return Stack("demo", "us-east-1", bundled_folder("infra"), config, tmp_path / "journal")


def environment(tmp_path, endpoint=HERE, **more):
    options = {"command": Path("/opt/pulumi/bin/pulumi"), "backend": "", "endpoint": endpoint, **more}
    return cli_environment(Layout(tmp_path), THEIRS, **options)


def test_user_pulumi_settings_are_excluded_from_environment(tmp_path):
    for endpoint in (HERE, CloudEndpoint()):
        found = environment(tmp_path, endpoint)
        assert "theirs" not in " ".join(value for name, value in found.items() if name.startswith("PULUMI_"))
        assert found["PULUMI_HOME"] == str(tmp_path / "home")
        assert found["PULUMI_BACKEND_URL"] == f"file://{tmp_path}/state"
        assert found["PULUMI_CONFIG_PASSPHRASE_FILE"] == str(tmp_path / "passphrase")
        assert found["PULUMI_SKIP_UPDATE_CHECK"] == "true"
        assert {"PULUMI_ACCESS_TOKEN", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_STACK"}.isdisjoint(found)
        assert found["HOME"] == "/theirs"
        assert found["PATH"].split(os.pathsep) == ["/opt/pulumi/bin", str(Path(sys.executable).parent), "/usr/bin"]


def test_rehearsal_gets_own_keys_and_no_user_credentials(tmp_path):
    found = environment(tmp_path)
    assert {name: value for name, value in found.items() if name.startswith("AWS_")} == {
        "AWS_ENDPOINT_URL": HERE.url,
        "AWS_ACCESS_KEY_ID": "KEY",
        "AWS_SECRET_ACCESS_KEY": "SECRET",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    assert found["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] == "true"


def test_aws_endpoint_variables_are_ignored_for_real_aws(tmp_path):
    found = environment(tmp_path, CloudEndpoint(), profile="research")
    assert {name: value for name, value in found.items() if name.startswith("AWS_")} == {
        "AWS_PROFILE": "research",
        "AWS_SESSION_TOKEN": "theirs",
    }
    assert "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION" not in found


def test_pulumi_access_token_is_passed_only_to_pulumi_service(tmp_path):
    assert "PULUMI_ACCESS_TOKEN" not in environment(tmp_path, CloudEndpoint(), backend="s3://ours")
    found = environment(tmp_path, CloudEndpoint(), backend="https://api.pulumi.com")
    assert (found["PULUMI_ACCESS_TOKEN"], found["PULUMI_BACKEND_URL"]) == ("pul-theirs", "https://api.pulumi.com")


def test_project_files_are_private_and_name_program_path(tmp_path, stack):
    layout = Layout(tmp_path / "pulumi")
    folder = layout.prepare(stack)
    assert stack_name(stack) == "demo.us-east-1.01234567"
    assert folder.name == stack_name(stack)
    assert (
        folder / "Pulumi.yaml"
    ).read_text() == f'name: cloudgpu\nruntime: python\nmain: "{bundled_folder("infra")}"\n'
    passphrase = layout.passphrase.read_text()
    assert len(passphrase) >= 32
    assert stat.S_IMODE(layout.passphrase.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    layout.prepare(stack)
    assert layout.passphrase.read_text() == passphrase
    layout.forget(stack)
    layout.forget(stack)
    assert not folder.exists()
    assert list(bundled_folder("infra").glob("Pulumi.*.yaml")) == []


def test_unwritable_home_raises_state_error(tmp_path, stack):
    (tmp_path / "pulumi").write_text("a file where the folder has to be")
    with pytest.raises(StateError):
        Layout(tmp_path / "pulumi").prepare(stack)


def test_plugin_serves_and_exits_with_parent_process(tmp_path):
    from importlib.metadata import version

    layout = Layout(tmp_path / "with a space")
    layout.install_plugin()
    layout.install_plugin()
    assert layout.plugin.parent.name == f"resource-aws-v{version('pulumi-aws')}"
    # the shell between stands for the CLI: it starts the plugin, learns its port, and is gone
    script = f'"{layout.plugin}" 127.0.0.1:1 -v=9 </dev/null & echo $!; exec sleep 30'
    shell = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert shell.stdout is not None
    pid, port = (int(shell.stdout.readline()) for _ in range(2))
    assert 0 < port < 65536
    shell.kill()
    assert shell.stdout.read() == ""  # the plugin held the other end
    shell.wait()
    shell.stdout.close()
    deadline = time.monotonic() + 10
    while process_start(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def distribution(folder: Path) -> Path:
    program(folder / "pulumi-language-python")
    return program(folder / "pulumi")


def test_cli_lookup_order_is_option_then_path_then_home(tmp_path):
    own = distribution(tmp_path / "root" / "bin")
    there = distribution(tmp_path / "usr")
    named = distribution(tmp_path / "opt")
    environ = {"PATH": str(there.parent)}
    assert find_pulumi_cli(named, tmp_path / "root", environ) == named
    assert find_pulumi_cli(None, tmp_path / "root", environ) == there
    assert find_pulumi_cli(None, tmp_path / "root", {"PATH": "/nowhere"}) == own


def test_missing_cli_is_installed_only_with_consent(tmp_path):
    with pytest.raises(UsageError, match="needs the Pulumi CLI") as caught:
        find_pulumi_cli(None, tmp_path, {"PATH": "/nowhere"})
    assert "--install-pulumi" in caught.value.hint
    fetched = []

    def fetch(root):
        fetched.append(root)
        distribution(root / "bin")

    assert find_pulumi_cli(None, tmp_path, {"PATH": "/nowhere"}, fetch) == tmp_path / "bin" / "pulumi"
    assert find_pulumi_cli(None, tmp_path, {"PATH": "/nowhere"}, fetch) == tmp_path / "bin" / "pulumi"
    assert fetched == [tmp_path]


def test_invalid_cli_path_and_incomplete_distribution_are_rejected(tmp_path):
    with pytest.raises(UsageError, match="which is not an executable file"):
        find_pulumi_cli(tmp_path / "gone", tmp_path, {"PATH": "/nowhere"})
    lonely = program(tmp_path / "bin" / "pulumi")
    with pytest.raises(UsageError, match="lacks pulumi-language-python"):
        find_pulumi_cli(lonely, tmp_path, {"PATH": "/nowhere"})


def test_cli_installation_failures_are_mapped_to_errors(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(installation.PulumiCommand, "install", lambda *, root: asked.append(root))
    install(tmp_path)
    assert asked == [str(tmp_path)]
    for failure, kind in (
        (URLError("no route"), ConnectError),
        (subprocess.CalledProcessError(1, "install.sh", b"one\nno space left"), StateError),
        (PermissionError(13, "Permission denied"), StateError),
    ):

        def fail(root, failure=failure):
            raise failure

        monkeypatch.setattr(installation.PulumiCommand, "install", fail)
        with pytest.raises(kind):
            install(tmp_path)
