"""Run the manual `pulumi up` commands of docs/guides/pulumi.md."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.rehearsal import client
from tests.documentation import blocks_for

pytestmark = [
    pytest.mark.pulumi,
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

ROOT = Path(__file__).resolve().parents[2]


def test_manual_pulumi_up_matches_direct_engine_and_destroy_cleans_up(deployment, tmp_path):
    up, destroy = blocks_for(__file__, "docs/guides/pulumi.md")
    (tmp_path / "infra").symlink_to(ROOT / "infra")
    ssh = tmp_path / ".ssh"
    ssh.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ssh / "id_ed25519"], check=True)
    up = up.replace("cp -r infra", "cp -rL infra")
    path = os.pathsep.join([str(Path(sys.executable).parent), str(deployment.pulumi_cli.parent), os.environ["PATH"]])
    environ = {"HOME": str(tmp_path), "PATH": path, "CLOUDGPU_HOME": str(deployment.home.root), "NO_COLOR": "1"}

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", script],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    state = 'declare -p PULUMI_CONFIG_PASSPHRASE PULUMI_BACKEND_URL PULUMI_HOME > "$HOME/variables"'
    run(f"{up}\n{state}")
    manual = {kind: len(rows) for kind, rows in deployment.resources().items()}
    assert manual["instances"] == 2
    # A second `pulumi up` changes nothing.
    again = 'eval "$(cloudgpu rehearsal env --pulumi)"; . ./variables; export ${!PULUMI_*}; cd my-cluster'
    assert "unchanged" in run(f"{again}; pulumi up --yes --expect-no-changes")
    run(f"{again}; {destroy}")
    assert deployment.remaining() == ({}, ())

    deployment.config |= {"cluster": "demo"}
    deployment.direct().up(deployment.stack, deployment.events.append)
    assert {kind: len(rows) for kind, rows in deployment.resources().items()} == manual
    deployment.direct().destroy(deployment.stack, deployment.events.append)
    assert client.list_resources(deployment.cloud)["instances"] == []
