"""A recording that is read back: the commands of its cluster are answered by what they printed."""

import os

import pytest
from live_tier import recordings
from live_tier.commands import Commands
from live_tier.evidence import CommandResult
from live_tier.scrubbing import Scrubber

from cloudgpu.errors import StateError

CALL = {"operation": "CreateFleet", "region": "us-east-1", "parameters": {}, "status": 200, "answer": {}}
UP = CommandResult("up", ("up", "smoke", "--name", "live-smoke-1", "--yes"), 5, 3.0, '{"nodes": []}', "a\nb", (CALL,))
DOWN = CommandResult("down", ("down", "live-smoke-1"), 6, 1.0, "no JSON", "", ())
AGAIN = CommandResult("down", ("down", "live-smoke-1"), 0, 1.0, "{}", "", ())


@pytest.fixture
def recording(tmp_path):
    recordings.write(tmp_path / "recording", (UP, DOWN, AGAIN), Scrubber([]))
    return recordings.read(tmp_path / "recording")


def test_commands_of_the_cluster_are_answered_without_running(recording, tmp_path):
    commands = Commands(tmp_path, os.environ, print, recording)
    up = commands.run("up", "up", "other", "--name", "other")
    assert (up.exit_code, up.document, up.stderr, up.calls) == (5, {"nodes": []}, "a\nb", (CALL,))
    assert commands.run("down", "down").exit_code == 0  # the later of two
    assert [result.name for result in commands.results] == ["up", "down"]


def test_cluster_of_a_recording_is_the_one_that_was_launched(recording):
    assert recording.cluster == "live-smoke-1"


def test_command_that_was_not_recorded_is_named(recording):
    with pytest.raises(StateError, match="the recording has no command 'train'"):
        recording.result("train")


def test_folder_without_a_recording_is_refused(tmp_path):
    (tmp_path / recordings.COMMANDS_FILE).write_text('[{"name": "up"}]')
    with pytest.raises(ValueError, match="is not the index of a recording"):
        recordings.read(tmp_path)
