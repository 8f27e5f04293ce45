"""The steps of a level: what is asked before a launch, and what always follows one."""

import json
from dataclasses import replace

import pytest
from live_tier.evidence import CommandResult
from live_tier.levels import CHECK, PAIR, SMOKE
from live_tier.live_run import LiveRun, Request

from cloudgpu.errors import BudgetError, PlanError, QuestionError

REQUEST = Request(SMOKE, "rehearsal", "us-east-1", "ann")
EMPTY_SEARCH = {"regions": ["us-east-1"], "unknown": [], "clusters": []}
PLAN = {"worst_case_usd": "0.28", "findings": []}
LEFT = {
    "cluster": "live-smoke-0a1b2c3d",
    "owner": "ann",
    "regions": ["global", "eu-west-1"],
    "things": {"instance": 1, "volume": 1},
    "expires_at": "2026-11-25T19:37:37+00:00",
}


class ScriptedCommands:
    """Answers commands by name. An answer is an exit code and a document, or an exception to raise."""

    def __init__(self, **answers):
        self.answers = {name.replace("_", " "): answer for name, answer in answers.items()}
        self.lines = []
        self.cleaning = False

    def run(self, name, *arguments):
        self.lines.append((name, *arguments))
        code, document = self.answers.get(name, (0, {}))
        if isinstance(document, BaseException):
            raise document
        return CommandResult(name, arguments, code, 0.0, json.dumps(document), "", ())

    @property
    def names(self):
        return [name for name, *_ in self.lines]


def run(commands, request=REQUEST, refuse=""):
    shown, asked = [], []

    def confirm(question):
        asked.append(question)
        if refuse and refuse in question:
            raise QuestionError("no")

    live = LiveRun(request, commands, shown.append, confirm)
    try:
        live.run()
    finally:
        live.shown, live.asked = shown, asked
    return live


def test_check_launches_nothing_and_asks_nothing():
    commands = ScriptedCommands()
    live = run(commands, replace(REQUEST, level=CHECK))
    assert {arguments[0] for _, *arguments in commands.lines} == {"doctor", "quota", "plan", "offers", "sweep"}
    assert live.asked == []


@pytest.mark.parametrize(("code", "error"), [(3, BudgetError), (7, PlanError), (8, PlanError)])
def test_refused_plan_launches_nothing(code, error):
    document = {"worst_case_usd": "7.20", "findings": [{"severity": "error", "check": "budget", "message": "7.20 USD"}]}
    commands = ScriptedCommands(search=(0, EMPTY_SEARCH), plan=(code, document))
    with pytest.raises(error):
        run(commands)
    assert commands.names == ["search", "plan"]


@pytest.mark.parametrize("level", [SMOKE, PAIR])
def test_plan_and_launch_have_the_limit_of_the_level(level):
    commands = ScriptedCommands(search=(0, EMPTY_SEARCH), plan=(0, PLAN), up=(4, {}), final_search=(0, EMPTY_SEARCH))
    run(commands, replace(REQUEST, level=level, image="r/nccl-tests:1"))
    for name, *arguments in commands.lines:
        if name in ("plan", "up"):
            assert {f"budget.max_usd={level.limit_usd}", "budget.expiry=30m"} <= set(arguments)


def test_refused_question_launches_nothing():
    commands = ScriptedCommands(search=(0, EMPTY_SEARCH), plan=(0, PLAN))
    with pytest.raises(QuestionError):
        run(commands, refuse="Launch it?")
    assert commands.names == ["search", "plan"]


@pytest.mark.parametrize(
    "answers",
    [
        {"up": (4, {})},
        {"up": (130, KeyboardInterrupt())},
        {"train": (5, {})},
        {"train": (0, RuntimeError("a bug"))},
        {"bootstrap_state": (9, {})},
    ],
)
def test_cluster_is_deleted_and_searched_for_whatever_happened(answers):
    commands = ScriptedCommands(search=(0, EMPTY_SEARCH), plan=(0, PLAN), final_search=(0, EMPTY_SEARCH), **answers)
    try:
        live = run(commands)
        assert live.left == []
    except (KeyboardInterrupt, RuntimeError):
        pass
    assert commands.cleaning
    assert commands.names[-3:] == ["down", "final search", "cost"]
    (_, down, name, *_), (_, up, _, _, launched, *_) = commands.lines[-3], commands.lines[2]
    assert (down, up, name) == ("down", "up", launched)


def test_failed_deletion_is_repeated_and_what_is_left_is_named():
    left = {"regions": [], "unknown": [], "clusters": []}
    commands = ScriptedCommands(search=(0, EMPTY_SEARCH), plan=(0, PLAN), down=(6, {}), final_search=(0, left))
    left["unknown"].append({"region": "us-west-2", "why": "denied"})
    live = run(commands)
    assert commands.names.count("down") == 3
    assert live.left == [
        f"not every region could be searched for {live.cluster}; cloudgpu down {live.cluster} --on rehearsal"
    ]


def test_failed_final_search_is_no_empty_account():
    commands = ScriptedCommands(search=(0, EMPTY_SEARCH), plan=(0, PLAN), final_search=(8, {"error": {"message": "x"}}))
    assert len(run(commands).left) == 1


def test_leftover_of_an_earlier_run_is_deleted_in_its_region_after_a_question():
    found = EMPTY_SEARCH | {"clusters": [LEFT]}
    commands = ScriptedCommands(search=(0, found), plan=(0, PLAN), final_search=(0, EMPTY_SEARCH))
    live = run(commands)
    assert live.asked == ["Delete live-smoke-0a1b2c3d?", "Launch it?"]
    expected = ("down", "down", "live-smoke-0a1b2c3d", "--region", "eu-west-1", "--yes", "--on", "rehearsal", "--json")
    assert commands.lines[1] == expected


@pytest.mark.parametrize(
    "changes", [{"owner": "bob"}, {"owner": None}, {"cluster": "lab"}, {"cluster": "live-smoke-x"}]
)
def test_clusters_of_others_are_left_alone(changes):
    found = EMPTY_SEARCH | {"clusters": [LEFT | changes]}
    commands = ScriptedCommands(search=(0, found), plan=(0, PLAN), final_search=(0, EMPTY_SEARCH))
    live = run(commands)
    assert live.asked == ["Launch it?"]
    assert [arguments[1] for name, *arguments in commands.lines if name == "down"] == [live.cluster]
