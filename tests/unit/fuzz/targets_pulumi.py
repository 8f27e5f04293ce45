"""Targets: the settings of Pulumi projects and of their AWS provider."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from cloudgpu.engine.direct.language_host import Project, read_project
from cloudgpu.engine.plugin.provider import read_configuration
from tests.unit.fuzz.conformity import conforms
from tests.unit.fuzz.hostile import files, spoiled, values
from tests.unit.fuzz.target import Target, written


def _project(content: bytes) -> None:
    written("project/__main__.py", b"")
    conforms(Project, read_project(written("project/Pulumi.yaml", content).parent))


def _provider(value: Any) -> None:
    environ = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    if isinstance(value, Mapping):
        conforms(dict[str, str], read_configuration(value, environ).tags)


TARGETS = (
    Target(
        "pulumi project",
        st.one_of(
            spoiled("name: a\nruntime: python\nconfig: {aws:region: us-east-1}\n"),
            files({"name": "a", "runtime": {"name": "python"}, "config": {"b": {"value": 1}}}),
        ),
        _project,
    ),
    Target("provider settings", values({"region": "us-east-1", "defaultTags": '{"tags": {"a": "b"}}'}), _provider),
)
