"""A state home with lost or damaged files: `down` finds the resources by their tags and deletes them."""

import shutil

import boto3
import pytest

pytestmark = pytest.mark.rehearsal


def lose_everything(cluster):
    shutil.rmtree(cluster.root)


def lose_the_record(cluster):
    cluster.record.unlink()


def damage_the_record(cluster):
    cluster.record.write_text('{"name": "plain", "tok')


def lose_the_journal(cluster):
    cluster.journal("us-east-1").unlink()


def tear_the_journal(cluster):
    journal = cluster.journal("us-east-1")
    journal.write_bytes(journal.read_bytes()[:-40])


def lose_the_inventory(cluster):
    cluster.inventory.unlink()


@pytest.mark.parametrize(
    "harm",
    [lose_everything, lose_the_record, damage_the_record, lose_the_journal, tear_the_journal, lose_the_inventory],
)
def test_down_deletes_a_cluster_with_lost_or_damaged_files(workspace, harm):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    harm(workspace.home.cluster("plain"))
    workspace.run("status", "--json")
    done = workspace.run("down", "plain")
    assert "Traceback" not in done.stderr
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []
    assert [row for row in workspace.json("cost")["rows"] if row["open_entries"]] == []


def test_down_finds_the_fleet_of_already_terminated_nodes(workspace):
    """AWS lists an instant fleet only by ID; its terminated instances still have that ID as a tag."""
    workspace.recipe()
    made = workspace.json("up", "plain", "--yes")
    cloud = workspace.cloud
    key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
    ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=cloud.url, **key)
    ec2.terminate_instances(InstanceIds=[node["instance_id"] for node in made["nodes"]])
    lose_everything(workspace.home.cluster("plain"))
    assert len(workspace.left()["fleets"]) == 1
    workspace.run("down", "plain")
    assert workspace.left() == {}


def test_cluster_with_a_damaged_journal_is_deleted_by_its_tags(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    journal = workspace.home.cluster("plain").journal("us-east-1")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"rubbish\n", *lines[2:]]))
    for _ in range(2):
        done = workspace.run("down", "plain", code=None)
        assert done.returncode in (0, 6, 10), done
        if done.returncode:
            assert str(journal) in done.stderr
            assert "hint:" in done.stderr
    assert workspace.left() == {}
