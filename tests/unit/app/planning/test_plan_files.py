"""Saved plans: the recorded work directory, catalog and account, and when a saved plan is rejected."""

import json
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from cloudgpu.app.planning import plan_files
from cloudgpu.app.planning.planner import Planned
from cloudgpu.catalog.snapshot import CatalogSnapshot
from cloudgpu.errors import BudgetError, PlanError, UsageError
from cloudgpu.paths import Home
from cloudgpu.state.catalog_snapshots import CatalogSnapshots
from tests.unit.app.plan_on import nowhere, plan_on

NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class AccountStub:
    """The part of a cloud that saved plans use."""

    endpoint: str = ""
    name: str = "123456789012"

    def account(self) -> str:
        return self.name


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").ensure()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    (folder / "recipe.yaml").write_text(
        "schema: 1\nname: tiny\nresources: {gpu: 'V100:8'}\nlaunch: {with: torchrun, command: train.py}\n"
        "budget: {max_usd: 1000}\n"
    )
    return folder


def planned(folder: Path, *sets: str) -> Planned:
    return plan_on(str(folder), sets, home=nowhere(folder.parent), today=date(2026, 8, 1))


def test_plan_file_in_work_directory_is_excluded_from_its_digest(home, folder):
    path = folder / "agreed.json"
    before = plan_files.collect_plan_inputs(planned(folder), AccountStub(), home, path)
    stored = plan_files.save(path, planned(folder), before, sets=[], region="us-east-1", now=NOW, home=home)
    assert plan_files.load(path) == stored
    after = plan_files.collect_plan_inputs(planned(folder), AccountStub(), home, path)
    fresh = planned(folder)
    assert plan_files.verify_saved_plan(path, stored, fresh, after).plan == fresh.plan


def _grow(folder):
    (folder / "more.py").write_text("")


def _edit(folder):
    (folder / "train.py").write_text("print(2)\n")


def _make_runnable(folder):
    (folder / "train.py").chmod(0o755)


def _rename(folder):
    (folder / "train.py").rename(folder / "other.py")


def _link(folder):
    (folder / "link").symlink_to("train.py")


@pytest.mark.parametrize("change", [_grow, _edit, _make_runnable, _rename, _link])
def test_every_work_directory_change_alters_the_digest(home, folder, change):
    path = folder.parent / "agreed.json"
    before = plan_files.collect_plan_inputs(planned(folder), AccountStub(), home, path)
    change(folder)
    after = plan_files.collect_plan_inputs(planned(folder), AccountStub(), home, path)
    assert after == replace(before, workdir_digest=after.workdir_digest)
    assert after.workdir_digest != before.workdir_digest


def test_changed_input_is_rejected_with_command_to_replan(home, folder):
    path = folder.parent / "agreed.json"
    before = plan_files.collect_plan_inputs(planned(folder), AccountStub(), home, path)
    stored = plan_files.save(
        path, planned(folder), before, sets=["resources.nodes=1"], region="us-east-1", now=NOW, home=home
    )
    other = plan_files.collect_plan_inputs(planned(folder), AccountStub(name="999999999999"), home, path)
    with pytest.raises(PlanError) as caught:
        plan_files.verify_saved_plan(path, stored, planned(folder), other)
    assert caught.value.findings == ("the account is 999999999999, not 123456789012",)
    assert f"--set resources.nodes=1 --out {path}" in caught.value.hint


def test_infeasible_plan_is_not_saved(home, folder):
    path = folder.parent / "agreed.json"
    broken = planned(folder, "budget.max_usd=1")
    world = plan_files.collect_plan_inputs(broken, AccountStub(), home, path)
    with pytest.raises(BudgetError):
        plan_files.save(path, broken, world, sets=[], region="us-east-1", now=NOW, home=home)
    assert not path.exists()


def test_saved_plan_exceeding_budget_raises_budget_error(home, folder):
    path = folder.parent / "agreed.json"
    fine = planned(folder)
    world = plan_files.collect_plan_inputs(fine, AccountStub(), home, path)
    stored = plan_files.save(path, fine, world, sets=[], region="us-east-1", now=NOW, home=home)
    with pytest.raises(BudgetError):
        plan_files.verify_saved_plan(path, stored, replace(fine, plan=planned(folder, "budget.max_usd=1").plan), world)


def rewritten(path, change):
    """Edit a saved plan and recompute its checksum, which needs no secret."""
    content = json.loads(path.read_text())
    content.pop("sha256")
    change(content)
    path.write_text(json.dumps({**content, "sha256": plan_files._checksum(content)}))


def move(content):
    content["region"] = "eu-west-1"
    for candidate in content["plan"]["candidates"]:
        candidate["region"], candidate["zone"] = "eu-west-1", "eu-west-1a"


def sign_again(content):
    """Sign the plan with a key of the attacker."""
    move(content)
    text = json.dumps({**content, "sha256": plan_files._checksum(content)})
    signed = plan_files.sign(plan_files.parse_saved_plan(text, "agreed.json"), b"another key")
    content |= {"home": signed.home, "signature": signed.signature}


EDITED = "was edited after it was saved"
UNSIGNED = "not signed, because an earlier version"
ELSEWHERE = "saved on another machine or with another CLOUDGPU_HOME"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (move, EDITED),
        (lambda content: content.update(sets=["resources.nodes=9"]), EDITED),
        (lambda content: content.update(signature=""), EDITED),
        (lambda content: content.update(signature="\xe9" * 64), EDITED),
        (lambda content: content.update(signature="\ud800"), EDITED),
        (lambda content: content.update(home="", signature=""), UNSIGNED),
        (lambda content: [content.pop("home"), content.pop("signature")], UNSIGNED),
        (sign_again, ELSEWHERE),
    ],
)
def test_plan_with_recomputed_checksum_is_rejected(home, folder, change, message):
    path = folder.parent / "agreed.json"
    world = plan_files.collect_plan_inputs(planned(folder), AccountStub(), home, path)
    plan_files.save(path, planned(folder), world, sets=[], region="us-east-1", now=NOW, home=home)
    plan_files.require_signature(path, plan_files.load(path), home)
    rewritten(path, change)
    with pytest.raises(UsageError, match=message):
        plan_files.require_signature(path, plan_files.load(path), home)


def test_plan_of_another_state_home_is_rejected_with_the_reason(home, folder, tmp_path):
    path = folder.parent / "agreed.json"
    world = plan_files.collect_plan_inputs(planned(folder), AccountStub(), home, path)
    stored = plan_files.save(path, planned(folder), world, sets=[], region="us-east-1", now=NOW, home=home)
    with pytest.raises(UsageError, match=ELSEWHERE) as caught:
        plan_files.require_signature(path, stored, Home(tmp_path / "other"))
    assert "cloudgpu plan RECIPE --out FILE" in caught.value.hint


@pytest.mark.parametrize("content", [None, b"\xff", b"{}"])
def test_invalid_plan_file_is_rejected(tmp_path, content):
    path = tmp_path / "agreed.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError):
        plan_files.load(path)


def test_catalog_snapshot_is_part_of_the_catalog_digest(home):
    bare = plan_files.catalog_digest(home, "aws")
    assert bare == plan_files.catalog_digest(home, "aws")
    CatalogSnapshots(home, "aws").add(
        lambda _before: (CatalogSnapshot("aws", "1", ""), "nothing", ()), at=NOW, regions=["us-east-1"]
    )
    refreshed = plan_files.catalog_digest(home, "aws")
    assert refreshed != bare
    CatalogSnapshots(home, "aws").revert(0)
    assert plan_files.catalog_digest(home, "aws") == bare
