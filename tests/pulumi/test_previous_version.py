"""The present version reuses and deletes what version 0.1.0 created with the Pulumi CLI."""

import json

import pytest

from tests.rehearsal.upgrade.previous import instance_ids, previewed, previous_version

pytestmark = [
    pytest.mark.pulumi,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def test_cluster_of_the_previous_version_previews_no_change_and_is_deleted_with_its_storage(
    workspace, pulumi_cli, tmp_path
):
    cli = {"CLOUDGPU_PULUMI_COMMAND": str(pulumi_cli)}
    pulumi = {**cli, "CLOUDGPU_ENGINE": "pulumi"}
    previous = previous_version(workspace, tmp_path / "previous")
    previous.recipe()
    storage = ("storage", "create", "shared", "--kind", "efs", "--on", "rehearsal", "--yes")
    previous.run("up", "plain", "--yes", env=pulumi)
    created = previous.json(*storage, env=pulumi)
    nodes = instance_ids(previous)
    projects = workspace.home.pulumi / "rehearsal" / "projects"
    assert len(list(projects.iterdir())) == 2

    # The records contain the engine.
    assert previewed(workspace, "plain", cli) == ["same"]
    workspace.run("up", "plain", "--yes", env=cli)
    assert instance_ids(workspace) == nodes
    assert workspace.json(*storage, env=cli)["id"] == created["id"]
    workspace.run("extend", "plain", "--by", "30m", env=cli)
    assert instance_ids(workspace) == nodes
    record = json.loads(workspace.home.cluster("plain").record.read_text())
    assert record["engine"] == "pulumi"
    assert previewed(workspace, "plain", cli) == ["same"]

    workspace.run("down", "plain", env=cli)
    workspace.run("storage", "delete", "shared", "--delete-data", "--yes", env=cli)
    assert workspace.left() == {}
    assert not any(projects.iterdir())
