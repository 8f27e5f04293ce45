"""Uploading outputs to S3: requests to every node, and failed uploads."""

import json

from cloudgpu.run import s3_transfers
from cloudgpu.run.collect import collect
from cloudgpu.run.dataset_copies import S3Service
from tests.fake_host import ScriptedResult
from tests.unit.run.test_staging import agents, job

OUTPUTS = {"outputs": ["out/*.json"], "outputs_to": "s3://bucket/results/{run}"}
GOOD = ScriptedResult(stdout='{"files": 2, "bytes": 10}\n')
BAD = ScriptedResult(
    exit_code=1, stdout='{"error": "1 output files could not be uploaded: 403 AccessDenied", "code": "upload"}\n'
)


def asked(agent, verb):
    return [json.loads(sent.stdin) for sent in agent.host.sent if sent.text.endswith(verb)]


def test_each_node_uploads_to_its_own_prefix_below_the_run():
    nodes = agents(2)
    for agent in nodes:
        agent.host.on("keep$", ScriptedResult(stdout='{"keeping": "x", "started": true}\n'))
    s3_transfers.start_uploads(job(**OUTPUTS), nodes, lambda _: S3Service(region="eu-west-1"))
    first, second = (asked(agent, "keep")[0] for agent in nodes)
    assert (first["prefix"], second["prefix"]) == ("results/plain-abc", "results/plain-abc/node-1")
    assert (first["name"], first["at_end"], first["bucket"], first["region"]) == (
        "outputs",
        True,
        "bucket",
        "eu-west-1",
    )
    assert first["source"] == "/home/ubuntu/.cloudgpu/runs/plain-abc/work"
    assert len(first["patterns"]) == 1


def test_no_upload_is_requested_for_local_outputs(tmp_path):
    (one,) = agents(1)
    s3_transfers.start_uploads(job(outputs=["out"]), [one], lambda _: S3Service())
    assert collect(job(outputs=["out"]), [one], tmp_path).failures == ()
    assert one.host.sent == []


def test_failed_output_upload_is_a_failure_until_retry_succeeds(tmp_path):
    one, two = agents(2)
    one.host.on("kept$", GOOD)
    two.host.on("kept$", BAD, GOOD)
    one.host.files["/home/ubuntu/.cloudgpu/runs/plain-abc/work/out/a.json"] = b"{}"
    collected = collect(job(**OUTPUTS), [one, two], tmp_path)
    assert collected.files == ("out/a.json",)
    assert collected.failures == ("node 1 (i-1): 1 output files could not be uploaded: 403 AccessDenied",)
    again = collect(job(**OUTPUTS), [one, two], tmp_path)
    assert again.failures == ()
    assert again.remarks == ("outputs: 4 files, 20 B, at s3://bucket/results/plain-abc",)


def test_run_without_outputs_reports_an_empty_upload(tmp_path):
    (one,) = agents(1)
    one.host.on("kept$", ScriptedResult(stdout='{"files": 0, "bytes": 0}\n'))
    told = collect(job(**OUTPUTS), [one], tmp_path)
    assert told.remarks == ("there were no outputs to upload to s3://bucket/results/plain-abc",)


def test_invalid_response_of_one_node_does_not_stop_the_collection(tmp_path):
    one, two = agents(2)
    one.host.on("kept$", GOOD)
    two.host.on("kept$", ScriptedResult(stdout='{"files": "many", "bytes": 10}\n'))
    one.host.files["/home/ubuntu/.cloudgpu/runs/plain-abc/work/out/a.json"] = b"{}"
    collected = collect(job(**OUTPUTS), [one, two], tmp_path)
    assert collected.files == ("out/a.json",)
    assert collected.remarks == ("outputs: 2 files, 10 B, at s3://bucket/results/plain-abc",)
    (failure,) = collected.failures
    assert "the agent sent an invalid value for files" in failure
