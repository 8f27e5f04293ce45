"""Pull progress, and how Docker engine and registry errors are mapped."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from cloudgpu.node.agent.containers import docker_api, image_transfer
from cloudgpu.node.agent.containers.docker_api import DockerApiError, DockerEndpoint
from cloudgpu.node.agent.gang.spec import read_start
from cloudgpu.node.agent.untrusted_data import AgentError
from cloudgpu.recipe.schema import Recipe

DOCS = Path(__file__).parents[4] / "docs/guides/containers.md"


def layer(name, status, current=None, total=None):
    detail = {} if total is None else {"current": current, "total": total}
    return {"id": name, "status": status, "progressDetail": detail}


def test_pull_progress_reports_each_layer_once_and_total_periodically(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(image_transfer.time, "monotonic", lambda: now[0])
    said = []
    pulled = image_transfer.PullProgress(said.append)
    for one in ("a", "b"):
        pulled.take(layer(one, "Pulling fs layer"))
    pulled.take(layer("a", "Downloading", 1 << 20, 4 << 20))
    now[0] = 6.0
    pulled.take(layer("b", "Downloading", 1 << 30, 3 << 30))
    pulled.take(layer("a", "Download complete"))
    pulled.take(layer("a", "Extracting", 1, 4 << 20))
    pulled.take(layer("a", "Pull complete"))
    pulled.take(layer("a", "Pull complete"))
    pulled.take(layer("b", "Retrying in 5 seconds"))
    pulled.take(layer("b", "Already exists"))
    pulled.take({"status": "Digest: sha256:0"})
    assert said == [
        "pulling: 1.0 GiB of at least 3.0 GiB",
        "layer a: 4.0 MiB, 1 of 2 layers done",
        "layer b: retrying in 5 seconds",
        "layer b: 3.0 GiB, 2 of 2 layers done",
    ]


def test_error_in_pull_stream_aborts_the_pull():
    with pytest.raises(DockerApiError, match="no space left"):
        image_transfer.PullProgress(lambda _: None).take(
            {"errorDetail": {"message": "no space left on device"}, "error": "x"}
        )


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("manifest for nvcr.io/nvidia/x:9 not found: manifest unknown: manifest unknown", "no-image"),
        ("pull access denied for x, repository does not exist or may require 'docker login': denied", "login"),
        ("Get https://nvcr.io/v2/: unauthorized: authentication required", "login"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", "architecture"),
        ("write /var/lib/docker/tmp/x: no space left on device", "disk-full"),
        ("toomanyrequests: You have reached your pull rate limit", "rate"),
        ("Get https://r/v2/: x509: certificate signed by unknown authority", "certificate"),
        ("Get https://r/v2/: dial tcp: lookup r: Temporary failure in name resolution", "network"),
        ("received unexpected HTTP status: 503 Service Unavailable", "network"),
        ("unexpected EOF", "network"),
    ],
)
def test_pull_error_message_is_mapped_to_code_and_hint(said, code):
    error = image_transfer.pull_error("x:9", DockerApiError(500, said))
    assert (error.code, bool(error.hint), said in error.message) == (code, True, True)


class Engine(docker_api.DockerApi):
    """An engine whose every response is the same, or fails in the same way."""

    def __init__(self, lines):
        super().__init__(DockerEndpoint("docker", "unix:///x"))
        self.respond = lines

    def lines(self, *_args, **_more):
        yield from self.respond()


def raising(error):
    def respond():
        raise error

    return respond


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DockerApiError(500, "containerd is down"), "the Docker engine returned an error: containerd is down"),
        (TimeoutError("timed out"), "no Docker engine responds at /x: timed out"),
        (ValueError("not JSON"), "unexpected response from the Docker engine: ValueError"),
    ],
)
def test_engine_that_fails_while_tagging_is_an_expected_error(error, said):
    with pytest.raises(AgentError) as caught:
        Engine(raising(error)).tag("sha256:1", "repo", "tag")
    assert (caught.value.code, caught.value.message) == ("no-docker", said)
    assert caught.value.hint


def test_pull_timeout_is_not_reported_as_a_rejection():
    assert (
        image_transfer.pull_error("x", TimeoutError("timed out"), 300.0).message == "cannot pull x: no data for 300 s"
    )


def start(**more):
    ranks = [{"rank": 0, "argv": ["docker", "exec"], "inside": "rank-0", "program": "train"}]
    return {"run_id": "r", "run_dir": "/r", "workdir": "/w", "node_index": 0, "ranks": ranks, **more}


def test_container_start_message_is_parsed_and_validated():
    given = {"name": "n", "image": "i", "client": ["docker"], "run": ["run"], "gpus": True, "own": ["/w"]}
    spec = read_start(start(container=given))
    assert (spec.container.run, spec.container.own, spec.container.devices) == (("run",), ("/w",), ())
    assert (spec.ranks[0].inside, spec.ranks[0].program) == ("rank-0", "train")
    for wrong in ("x", {**given, "run": []}, {**given, "client": [1]}, {**given, "name": None}):
        with pytest.raises(AgentError, match=r"start: container(\.\w+)? must "):
            read_start(start(container=wrong))


def test_documented_container_recipes_are_valid():
    texts = re.findall(r"^```yaml\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    login, setup = (Recipe.model_validate(YAML(typ="safe").load(text)) for text in texts)
    assert login.environment.container.password == "NGC_API_KEY"
    assert setup.environment.container is not None
    assert setup.setup
