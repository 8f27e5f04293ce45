"""Check that the results of a run outlive its nodes."""

import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Final

from cloudgpu.errors import RecipeError
from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.recipe import template
from cloudgpu.recipe.schema import Recipe

_WRITES: Final = re.compile(
    r"^--?(?:[a-z0-9]+[-_])*(?:out|outputs?|save|results?|logs?|logdir|ckpts?|checkpoints?)(?:[-_]?(?:dir|path|file|folder|to))?$"
)
"""Command options whose value is a path that the program writes to."""
_OUTPUTS: Final = re.compile(r"(?<!\{)\{outputs\}")


@check("outputs", "warning", "Files outside the work directory are lost with the node's disk.")
def outputs_collected(case: CheckInput) -> Iterator[Issue]:
    """Report output paths outside the work directory, and `{outputs}` if `outputs` does not list its directory."""
    recipe = case.question.recipe
    if _OUTPUTS.search(recipe.launch.command) and not any(_includes_outputs(output) for output in recipe.outputs):
        message = "the command writes to {outputs}, but `outputs` does not list that directory, so its files are lost"
        yield Issue(message, "add outputs/ to `outputs`")
    mounted = [storage.to for storage in recipe.storage]
    for option, path in _written_paths(recipe):
        if not any(PurePosixPath(path).is_relative_to(to) for to in mounted):
            message = f"{option} {path} is outside the work directory, on a disk that is lost with the node"
            yield Issue(message, "write below the work directory and list the path under outputs, or use {outputs}")


@check("nothing-kept", "note", "A run without outputs is reported before it costs anything.")
def results_collected(case: CheckInput) -> Iterator[Issue]:
    """Report a run for which only logs and metrics are kept."""
    recipe = case.question.recipe
    copied = recipe.checkpoint is not None and recipe.checkpoint.to is not None
    if not case.question.rehearsed and not (recipe.outputs or copied or recipe.storage):
        yield Issue("the recipe lists no outputs: only logs and metrics are downloaded", "add outputs: [outputs/]")


@check("checkpoint-kept", "warning", "A checkpoint on a spot node's local disk is lost with the node.")
def checkpoint_outlives_spot(case: CheckInput) -> Iterator[Issue]:
    """Report spot nodes whose checkpoints are not copied anywhere."""
    checkpoint, recipe = case.question.recipe.checkpoint, case.question.recipe
    if checkpoint is None or not any(candidate.market == "spot" for candidate in case.field.candidates):
        return
    if checkpoint.to is None and not any(_includes(output, checkpoint.path) for output in recipe.outputs):
        message = f"checkpoints in {checkpoint.path} are stored only on the spot nodes' disks"
        yield Issue(message, f"add {checkpoint.path}/ to outputs")


def _includes_outputs(output: str) -> bool:
    """Return True if a pattern matches the directory `outputs` or something in it."""
    return fnmatch("outputs", PurePosixPath(output).parts[0])


def _includes(output: str, path: PurePosixPath) -> bool:
    return path.is_relative_to(output) or fnmatch(path.as_posix(), output)


def _written_paths(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield (option, absolute path) pairs from the command, with parameters filled in."""
    try:
        words = shlex.split(recipe.launch.command)
    except ValueError:
        return  # reported by the validation of the recipe
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if _WRITES.match(option) and (equals or index + 1 < len(words)):
            path = _filled(recipe, value if equals else words[index + 1])
            if path.startswith("/") and not path.startswith("/dev/"):
                yield option, path


def _filled(recipe: Recipe, word: str) -> str:
    """Return the word with its parameters filled in; empty if it contains a run-time value, such as `{outputs}`."""
    try:
        return " ".join(template.argv(shlex.quote(word), recipe.params))
    except RecipeError:
        return ""
