"""Fuzz targets for user input and run output: recipes, inventories, options, logs, metrics, agent responses."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from cloudgpu.app.execute import parse_node_indices
from cloudgpu.app.runs import datasets
from cloudgpu.app.tunnels import parse_port_forwards
from cloudgpu.backends.hosts import backend, operations, scan
from cloudgpu.backends.hosts.delete import HostTeardown
from cloudgpu.backends.hosts.nodes import (
    ExtendedResponse,
    HostFacts,
    LeasesResponse,
    LeaveResponse,
    TakenResponse,
)
from cloudgpu.catalog import load as load_catalog
from cloudgpu.catalog.gpu_spec import find_spec_mismatch, parse_gib, types_for_spec, why_no_such_gpu
from cloudgpu.cli.commands.clusters import _parse_expiry
from cloudgpu.cli.terminal.number_format import duration
from cloudgpu.cli.train_options import read_env_file
from cloudgpu.decoding import decode_as
from cloudgpu.errors import CloudGpuError, RecipeError, RemoteCommandError
from cloudgpu.hosts.host import HostSeen, HostsFile, OwnHost
from cloudgpu.hosts.loading import load as load_hosts
from cloudgpu.recipe.document import as_yaml, parse
from cloudgpu.recipe.field_types import DurationS, SizeGib
from cloudgpu.recipe.loader import load, validate_recipe
from cloudgpu.recipe.matrix import read_axes
from cloudgpu.recipe.schema import Metric, Recipe
from cloudgpu.recipe.set_option import assign
from cloudgpu.recipe.sources import source_of
from cloudgpu.run.agent import Agent, AgentReply, _answers, _lines, require_shape
from cloudgpu.run.agent_messages import (
    Chunk,
    SpotNotice,
    Verdict,
    append_times,
    combine_verdicts,
    first_offset_since,
    stored_times,
)
from cloudgpu.run.containers import NodeImage, _node_image, _read
from cloudgpu.run.job import recipe_of
from cloudgpu.run.metrics import Metrics
from cloudgpu.run.node_health import Health, _ready
from cloudgpu.run.transport import NodeTransport, describe_transport
from cloudgpu.settings import load as load_settings
from cloudgpu.ssh.keys import read_public
from cloudgpu.ssh.known_hosts import authority_note, known_keys
from tests.fake_host import FakeHost
from tests.manual_clock import ManualClock
from tests.unit.fuzz.conformity import conforms
from tests.unit.fuzz.hostile import files, lines, spoiled, spoiled_text, values, words
from tests.unit.fuzz.target import Target, scratch, written
from tests.unit.fuzz.targets_home import NODE, NOW, RUN

RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "demo",
    "description": "a demo",
    "resources": {"gpus": "V100:8", "nodes": 2, "disk": "200GiB"},
    "launch": {"launcher": "torchrun", "command": "train.py --lr {params.lr}"},
    "params": {"lr": 0.1},
    "budget": {"max_usd": 50, "expiry": "2h"},
    "metrics": {"loss": {"pattern": r"loss=(?P<value>\S+)", "unit": ""}},
}
HOSTS = """\
defaults: {user: me, driver: "535.129"}
hosts:
  - {name: box1, address: 10.0.0.1, gpus: "V100-16GB:8", cores: 64, memory: 256GiB, usd_per_hour: 1.5}
  - {name: box2, address: 10.0.0.2, gpus: "V100-16GB:8", jump: box1}
"""
FACTS = {
    "gpus": [{"name": "Tesla V100-SXM2-16GB", "memory_mib": 16160, "ecc_errors": 0, "driver": "535.129.03"}],
    "gpu_error": "",
    "addresses": [{"address": "10.0.0.1", "interface": "eth0"}],
    "cpus": 8,
    "memory_mib": 64_000,
    "disk_free_mib": 10_000,
    "python": "3.11.2",
    "bootstrap": "done",
    "bootstrap_steps": [{"name": "drivers", "seconds": 5}],
}
IMAGE = {
    "id": "sha256:0",
    "digest": "sha256:1",
    "entrypoint": ["a"],
    "devices": [],
    "size_bytes": 5,
    "pulled": True,
    "engine": {"docker": "/bin/docker", "host": "unix:///a", "gpu_runtime": False, "devices": [], "huge_pages": False},
}
HOST_STATE = {
    "gpus": [0, 1],
    "problem": "",
    "leases": [{"gpus": [0], "told": "cluster lab of ana"}],
    "processes": [{"gpu": 1, "told": "process 5 of bob"}],
}
OWN = OwnHost("box1", "10.0.0.1", 22, "me", 1, gpu="v100", gpus=8, gpu_memory_gib=Decimal(16))


def _recipe(content: bytes) -> None:
    folder = written("recipe/recipe.yaml", content).parent
    loaded = load(folder / "recipe.yaml")
    again, found = validate_recipe(parse(as_yaml(loaded.recipe)).value, folder)
    assert again == loaded.recipe
    assert found == ()


def _run_recipe(value: Any) -> None:
    conforms(Recipe, recipe_of(dataclasses.replace(RUN, resolved=value)))


def _assigned(text: str) -> None:
    name, _, value = text.partition("=")
    values_: dict[str, Any] = json.loads(json.dumps(RECIPE))
    assign(values_, name, value)
    json.dumps(values_)
    validate_recipe(values_, scratch())


def _axes(text: str) -> None:
    for axis in read_axes([text]):
        assert axis.values


def _env_file(content: bytes) -> None:
    for name, value in read_env_file(written("my.env", content)).items():
        assert name.isidentifier()
        assert "\n" not in name
        assert isinstance(value, str)


def _hosts(content: bytes) -> None:
    found = load_hosts(written("hosts.yaml", content), user="me", catalog=load_catalog())
    conforms(HostsFile, found)


def _settings(value: Any) -> None:
    environ = {f"CLOUDGPU_{name}": text for name, text in value.items()} if isinstance(value, Mapping) else {}
    load_settings(
        flags={}, environ={name: text for name, text in environ.items() if isinstance(text, str)}, cwd=scratch()
    )


def _duration(text: str) -> None:
    seconds = DurationS.parse(text)
    assert DurationS.parse(str(seconds)) == seconds
    _ = datetime(2026, 1, 1) + timedelta(seconds=seconds)  # noqa: DTZ001
    duration(seconds)


def _size(text: str) -> None:
    size = SizeGib.parse(text)
    assert SizeGib.parse(str(size)) == size


def _gpu_spec(text: str) -> None:
    catalog = load_catalog()
    types_for_spec(text, catalog)
    find_spec_mismatch(text, catalog)
    why_no_such_gpu(text, catalog)


def _memory(text: str) -> None:
    assert parse_gib(text).is_finite()
    assert parse_gib(text) >= 0


def _source(text: str) -> None:
    assert source_of(text).kind


def _ports(text: str) -> None:
    for one in parse_port_forwards([text]):
        assert 0 <= one.local <= 65535
        assert 1 <= one.remote <= 65535


def _indices(text: str) -> None:
    assert all(0 <= one < 4 for one in parse_node_indices(text, 4))


def _until(text: str) -> None:
    found = _parse_expiry(text)
    assert found is None or found.utcoffset() == timedelta()


def _manifest(content: bytes) -> None:
    for name, digest in datasets.read_manifest(written("SHA256SUMS", content)).items():
        assert re.fullmatch("[0-9a-f]{64}", digest)
        assert name


def _times_file(content: bytes) -> None:
    path = written("rank-0.times", content)
    last = 3
    for end, at in stored_times(path, last):
        assert end > last
        assert at is None or at > 0
        last = end
    assert first_offset_since(path, datetime(2026, 11, 27, tzinfo=UTC), 20) in (None, *range(21))
    append_times(path, 12, [(14, 1795770729000)])
    assert path.stat().st_size % 31 == 0


def _chunk(value: Any) -> None:
    if isinstance(value, Mapping):
        chunk = Chunk.of(value)
        conforms(Chunk, chunk)
        assert len(chunk.raw) == chunk.size
        assert chunk.rank >= 0
        assert chunk.offset >= 0
        assert b"".join(raw for _, raw in chunk.by_time()) == chunk.raw
        rest = chunk.after(chunk.offset + 1)
        assert rest is None or all(rest.offset < end <= rest.offset + rest.size for end, _ in rest.times)


def _verdict(value: Any) -> None:
    verdict = Verdict.of(value)
    conforms(Verdict, verdict)
    assert combine_verdicts([verdict, Verdict("failed", 1, 0, 0, "a")])


def _transport(value: Any) -> None:
    reported = NodeTransport.of(0, value)
    conforms(NodeTransport, reported)
    assert reported.name
    assert len(describe_transport(reported.name, "p4d.24xlarge", "auto")) < 200


def _spot_notice(value: Any) -> None:
    conforms(SpotNotice, SpotNotice.of(0, value))


class _Stream:
    exit_code, stderr = 0, ""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def lines(self, _timeout_s: float | None = None) -> Any:
        return iter(self._content.decode("utf-8", "replace").splitlines())

    def renew(self) -> None:
        return

    def close(self) -> None:
        return


def _agent_lines(content: bytes) -> None:
    agent = Agent(FakeHost(NODE), "/a", "/home/me")  # type: ignore[arg-type]
    found = list(_lines(_Stream(content), "follow", NODE))  # type: ignore[arg-type]
    for one in agent.answers(_Stream(content), "follow"):  # type: ignore[arg-type]
        assert one in found


_LEASE = {"cluster": "a", "owner": "b", "gpus": [0], "mine": True, "told": ""}


def _host_answer(content: bytes) -> None:
    for answer in _answers(_Stream(content), 1.0, NODE):  # type: ignore[arg-type]
        for shape in (LeasesResponse, TakenResponse, ExtendedResponse, LeaveResponse, HostFacts):
            with contextlib.suppress(CloudGpuError):  # one document is an answer to one of the questions only
                conforms(shape, decode_as(shape, require_shape(NODE, "lease", answer, shape)))


class _Probed:
    """An agent that answers `probe` with the example."""

    host = FakeHost(NODE)

    def __init__(self, value: Any) -> None:
        self._value = value

    def ask(self, _verb: str, _request: Any) -> Any:
        return self._value


def _health(value: Any) -> None:
    if isinstance(value, Mapping):
        health = _ready(_Probed(value), ManualClock(NOW), lambda _: None)  # type: ignore[arg-type]
        conforms(Health, health)


def _described_host(value: Any) -> None:
    if isinstance(value, Mapping):
        found = scan._scanned(OWN, value, {}, load_catalog())
        conforms(type(found), found)


def _image_answer(value: Any) -> None:
    from cloudgpu.launch.containers import parse_image_name

    if isinstance(value, Mapping):
        found = _node_image(parse_image_name("a:1"), _read(0, value))
        conforms(NodeImage, found)


def _host_state(value: Any) -> None:
    conforms(HostSeen, backend._seen(value))


def _taken_devices(value: Any) -> None:
    if isinstance(value, Mapping):
        conforms(tuple[int, ...], operations._with_devices(NODE, AgentReply(value, "a")).devices)


def _left_hosts(value: Any) -> None:
    """A host counts as cleaned up only if its agent reported that nothing is left."""
    if isinstance(value, Mapping):
        answer = AgentReply(value, "a")
        context: Any = mock.Mock()
        context.hosts.query_nodes.return_value = {NODE.index: answer}
        found = HostTeardown(context)._request_release([NODE], mock.Mock())
        assert bool(found.released) != bool(found.left)
        assert not found.released or value["left"] == []


def _figures(text: str) -> None:
    metric = Metric.model_validate({"pattern": r"loss=(?P<value>\S+)", "better": "lower"})
    metrics = Metrics({"loss": metric})
    for line in text.splitlines():
        for _, value, _ in metrics.read(line):
            assert isinstance(value, float)
    for one in metrics.measured():
        f"{one.value!s} {one.share!s}".encode()


def _known_hosts(content: bytes) -> None:
    found = known_keys("a.b", 22, [written("known_hosts", content)])
    assert all(pin.startswith("SHA256:") for pin in found)
    assert isinstance(authority_note("a.b", 2222, [written("known_hosts", content)]), str)


def _key(content: bytes) -> None:
    assert read_public(written("id", content)).fingerprint.startswith("SHA256:")


RECIPE_TEXT = "schema: 1\nname: demo\nresources: {gpus: 'V100:8'}\nlaunch:\n  launcher: torchrun\n  command: train.py\n"
TARGETS = (
    Target("recipe of a run record", values(RECIPE), _run_recipe),
    Target("recipe", st.one_of(files(RECIPE), spoiled(RECIPE_TEXT)), _recipe, (RecipeError,)),
    Target(
        "assignment", words("params.lr=0.2", "resources.nodes=4", "budget.expiry=3h", "environment.env.A=b"), _assigned
    ),
    Target("env file", spoiled("A=b # c\nexport B='x y'\n# d\n\n", 'C="a\\nb\\\\" # e\r\n'), _env_file),
    Target("matrix axis", words("params.lr=0.1,0.2", "nodes=1,2"), _axes),
    Target(
        "hosts file",
        st.one_of(spoiled(HOSTS), files({"hosts": [{"name": "a", "address": "10.0.0.1", "gpus": "V100:8"}]})),
        _hosts,
    ),
    Target("settings variables", values({"OWNER": "ana", "REGION": "us-east-1", "TEAM": "t"}), _settings),
    Target("duration", words("2h", "90min", "1d 2h", "3600"), _duration, (ValueError,)),
    Target("size", words("200GiB", "1TiB", "5"), _size, (ValueError,)),
    Target("gpu request", words("V100-16GB:8", "A100:8", "p3dn.24xlarge"), _gpu_spec),
    Target("memory text", words("16 GiB", "80GB"), _memory, (ValueError,)),
    Target("data source", words("s3://bucket/a", "https://a/b", "data/set", "nfs://host/path"), _source, (ValueError,)),
    Target("tunnel ports", words("8888", "9000:8888"), _ports),
    Target("node numbers", words("0,2-3", "1"), _indices),
    Target("moment of an extension", words("2026-11-22T18:00Z", "2026-11-22 18:00 UTC"), _until),
    Target(
        "times of a log",
        spoiled("0000000000000006 1795770720000\n0000000000000008?1795770720000\n0000000000000012 1795770726000\n"),
        _times_file,
        (),
    ),
    Target("checksum manifest", spoiled("0" * 64 + "  a/b\n" + "1" * 64 + " *./c\n"), _manifest),
    Target(
        "network message",
        values({"name": "tcp", "line": "Using network Socket", "why": "NET/Plugin: Could not find: libnccl-net.so"}),
        _transport,
        (RemoteCommandError,),
    ),
    Target(
        "interruption message",
        values({"action": "terminate", "time": "2026-11-21T12:02:00Z"}),
        _spot_notice,
        (RemoteCommandError,),
    ),
    Target(
        "log message",
        values(
            {"rank": 0, "offset": 0, "bytes": 6, "data": "hello\n", "times": [[2, 1795770720000], [6, 1795770721000]]}
        ),
        _chunk,
        (RemoteCommandError,),
    ),
    Target(
        "final status",
        values({"state": "failed", "first_failure": {"rank": 1, "exit_code": 1, "node_index": 0, "reason": "a"}}),
        _verdict,
        (RemoteCommandError,),
    ),
    Target("agent answers", lines({"progress": "a"}, {"error": "a", "hint": "b", "code": "c"}), _agent_lines),
    Target("health facts", values(FACTS), _health),
    Target("host facts", values(FACTS), _described_host),
    Target("image answer", values(IMAGE), _image_answer),
    Target("gpus of a host", values(HOST_STATE), _host_state),
    Target("gpus that were leased", values({"devices": [0, 1], "of": 8}), _taken_devices),
    Target("left on a host", values({"clusters": 1, "gpus": [0], "left": []}), _left_hosts),
    Target("metric lines", spoiled_text("loss=0.5\nloss=1,000.5 loss=nan\n"), _figures),
    Target(
        "host answers",
        lines(
            {
                "gpus": [0],
                "problem": "",
                "leases": [{"cluster": "a", "owner": "b", "gpus": [0], "mine": True, "told": ""}],
            },
            {"devices": [0], "of": 1, "clusters": 1, "left": [], "gpus": [], "processes": [{"gpu": 0, "told": ""}]},
        ),
        _host_answer,
    ),
    Target(
        "known hosts",
        spoiled(
            "a.b,[a.*]:22 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA me\n"
            "@revoked !x,* ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAA==\n"
            "|1|AAAA|AAAA ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n"
        ),
        _known_hosts,
    ),
    Target(
        "private key", spoiled("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"), _key
    ),
)
