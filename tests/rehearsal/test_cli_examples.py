"""The outputs in docs/reference/cli.md are those of the commands."""

import pytest

from tests.documentation import blocks_for
from tests.rehearsal.cli_examples import FOLDER, SESSION, ann, is_current, run

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(900)]


def test_outputs_in_the_reference_of_commands_are_current(monkeypatch, popen_class):
    with ann(monkeypatch, popen_class) as workspace:
        changed = [example for step, example in run(workspace) if step.name and not is_current(step, example)]
        assert workspace.left() == {}
    assert changed == [], "\n".join(["run: .venv/bin/python -m tests.rehearsal.cli_examples", *changed])


def test_every_example_in_the_reference_is_part_of_the_session():
    shown = {step.file for step in SESSION if step.name}
    assert shown == set(FOLDER.iterdir())
    page = blocks_for(__file__, "docs/reference/cli.md")
    assert sorted(page) == sorted(path.read_text(encoding="utf-8") for path in shown)
