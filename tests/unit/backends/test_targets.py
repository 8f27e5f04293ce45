"""The table of targets, and targets that other packages register."""

import importlib.metadata
import json
import sys
import tomllib
from importlib import import_module
from types import SimpleNamespace

import pytest

from cloudgpu import targets
from cloudgpu.backends.base import Backend
from cloudgpu.backends.factory import open_backend
from cloudgpu.cli.main import main
from cloudgpu.errors import StateError, UsageError
from cloudgpu.settings import load
from cloudgpu.targets import TARGETS, TargetTraits, as_target, cloud_options, find, is_simulated, traits
from tests.documentation import blocks_for

SLURM = TargetTraits("slurm_backend", launches=False)
(DOCUMENTED,) = blocks_for(__file__, "docs/explanation/backends.md")


@pytest.fixture
def installed(monkeypatch):
    """Register a target by an entry point of another package; return the names that were looked up."""
    looked_up = []

    def load_broken():
        raise ImportError("no module named 'broken_backend'")

    points = {
        "slurm": SimpleNamespace(value="slurm_backend:target", load=lambda: SLURM),
        "broken": SimpleNamespace(value="broken_backend:target", load=load_broken),
        "wrong": SimpleNamespace(value="slurm_backend:open_backend", load=lambda: open_backend),
    }

    def entry_points(*, group, name):
        assert tomllib.loads(DOCUMENTED)["project"]["entry-points"] == {group: {"slurm": points["slurm"].value}}
        looked_up.append(name)
        return [points[name]] if name in points else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    targets._installed.cache_clear()
    yield looked_up
    targets._installed.cache_clear()


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_of_the_table_has_a_backend_that_can_be_opened(name):
    assert callable(import_module(TARGETS[name].backend).open_backend)


def test_targets_of_the_table_are_found_without_a_search_for_other_packages(installed):
    assert [find(name) for name in TARGETS] == list(TARGETS.values())
    assert installed == []


def test_target_of_another_package_is_accepted_like_one_of_the_table(installed, monkeypatch, tmp_path, capsys):
    opened = object()
    monkeypatch.setitem(sys.modules, "slurm_backend", SimpleNamespace(open_backend=lambda _: opened))
    assert find("slurm") is SLURM
    assert (as_target("slurm"), is_simulated("slurm"), traits("slurm").launches) == ("slurm", False, False)
    assert open_backend("slurm", None) is opened
    assert load(flags={}, environ={"CLOUDGPU_TARGET": "slurm"}, cwd=tmp_path).target == "slurm"
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path))
    assert main(["catalog", "show", "--on", "slurm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "slurm"
    assert installed == ["slurm"]  # looked up once, however often its properties are read


@pytest.mark.parametrize("name", ["nope", "wrong", "", "../aws", "aws "])
def test_unknown_target_is_rejected(installed, name, tmp_path, capsys):
    assert find(name) is None
    assert traits(name).launches
    assert not is_simulated(name)
    with pytest.raises(StateError, match="does not know the target"):
        as_target(name)
    with pytest.raises(UsageError):
        load(flags={"target": name}, environ={}, cwd=tmp_path)
    assert main(["plan", "quickstart", "--on", name]) == 2
    assert f"invalid value for '--on': {name!r} is not one of 'aws', 'rehearsal', 'ssh'" in capsys.readouterr().err


def test_backend_of_a_damaged_package_is_an_error_only_when_it_is_used(installed):
    with pytest.raises(StateError, match="cannot be imported: no module named 'broken_backend'") as caught:
        as_target("broken")
    assert "broken_backend:target" in caught.value.hint
    assert traits("broken").launches


def test_hint_for_a_missing_feature_lists_the_other_clouds():
    class Without(Backend):
        target = "rehearsal"
        description = "the rehearsal cloud"

    assert cloud_options() == "--on aws or --on rehearsal"
    with pytest.raises(UsageError) as caught:
        Without().quotas()
    assert caught.value.message == "quotas: not available on the rehearsal cloud"
    assert caught.value.hint == "use --on aws"
