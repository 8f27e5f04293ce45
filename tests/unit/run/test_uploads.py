"""Outputs that go to S3: what every node is asked for, and what is told of a node whose are not there."""

import json

from cloudgpu.run.collect import collect
from cloudgpu.run.data import uploads
from cloudgpu.run.data.files import S3Service
from cloudgpu.ssh.fake import ScriptedResult
from tests.unit.run.test_staging import agents, job

OUTPUTS = {"outputs": ["out/*.json"], "outputs_to": "s3://bucket/results/{run}"}
GOOD = ScriptedResult(stdout='{"files": 2, "bytes": 10}\n')
BAD = ScriptedResult(
    exit_code=1, stdout='{"error": "1 output files could not be uploaded: 403 AccessDenied", "code": "upload"}\n'
)


def asked(agent, verb):
    return [json.loads(sent.stdin) for sent in agent.host.sent if sent.wire.endswith(verb)]


def test_every_node_has_a_place_of_its_own_below_that_of_the_run():
    nodes = agents(2)
    for agent in nodes:
        agent.host.on("keep$", ScriptedResult(stdout='{"keeping": "x", "started": true}\n'))
    uploads.start_uploads(job(**OUTPUTS), nodes, lambda _: S3Service(region="eu-west-1"))
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


def test_nothing_is_asked_where_outputs_come_to_this_machine_alone(tmp_path):
    (one,) = agents(1)
    uploads.start_uploads(job(outputs=["out"]), [one], lambda _: S3Service())
    assert collect(job(outputs=["out"]), [one], tmp_path).failures == ()
    assert one.host.sent == []


def test_what_is_there_is_told_and_what_could_not_be_sent_keeps_the_run_open(tmp_path):
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


def test_a_run_that_left_nothing_says_so(tmp_path):
    (one,) = agents(1)
    one.host.on("kept$", ScriptedResult(stdout='{"files": 0, "bytes": 0}\n'))
    told = collect(job(**OUTPUTS), [one], tmp_path)
    assert told.remarks == ("there were no outputs to upload to s3://bucket/results/plain-abc",)
