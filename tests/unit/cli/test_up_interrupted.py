"""Ctrl-C in `up`: a cluster that this command created is offered for deletion, with yes as the default."""

from types import SimpleNamespace

import pytest

from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.cli.commands.up import _ask_about_cluster
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.terminal import prompts
from tests.cluster_records import changed


class Person(SimpleNamespace):
    """A terminal."""

    def isatty(self):
        return True


@pytest.fixture
def asked(tmp_path, monkeypatch, cluster, now):
    """Answer every question with yes; the questions, their defaults, and the deleted clusters."""
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    asked = SimpleNamespace(questions=[], deleted=[], cluster=lambda **values: save(changed(cluster, **values), now))
    save = command_context().records.save_cluster

    def ask(question, *, default=False):
        asked.questions.append((question, default))
        return True

    class Clusters:
        def delete(self, name, _region):
            asked.deleted.append(name)
            return DeletionResult(name, known=True)

    monkeypatch.setattr("sys.stdin", Person())
    monkeypatch.setattr(prompts, "ask", ask)
    monkeypatch.setattr(CliContext, "deletion_context_of", lambda *_: SimpleNamespace(clusters=Clusters()))
    return asked


@pytest.mark.parametrize(
    ("state", "what"), [("up", "was created, but nothing runs on it yet"), ("making", "may be incomplete")]
)
def test_new_cluster_is_offered_for_deletion(asked, state, what):
    asked.cluster(state=state)
    _ask_about_cluster(command_context(), "s1", "ask", created=True)
    assert asked.questions == [(f"cluster s1 {what}. Delete the cluster now?", True)]
    assert asked.deleted == ["s1"]


def test_cluster_that_was_already_running_is_not_offered(asked, capsys):
    asked.cluster(state="up")
    _ask_about_cluster(command_context(), "s1", "ask", created=False)
    assert asked.questions == asked.deleted == []
    assert "delete it now: cloudgpu down s1" in capsys.readouterr().out
