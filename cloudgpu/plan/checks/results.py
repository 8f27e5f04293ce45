"""Check that the results of a run outlive its nodes, and where they are uploaded."""

import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Final

from cloudgpu.errors import RecipeError
from cloudgpu.plan.checks.check import CheckContext, Issue, check
from cloudgpu.recipe import template
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.template import variable_name
from cloudgpu.text import command

_WRITES: Final = re.compile(
    r"^--?(?:[a-z0-9]+[-_])*(?:out|outputs?|save|results?|logs?|logdir|ckpts?|checkpoints?)(?:[-_]?(?:dir|path|file|folder|to))?$"
)
"""Command options whose value is a path that the program writes to."""
_OUTPUTS: Final = re.compile(r"(?<!\{)\{outputs\}")


@check("outputs", "warning", "Files outside the work directory are lost with the node's disk.")
def outputs_collected(context: CheckContext) -> Iterator[Issue]:
    """Report output paths outside the work directory, and `{outputs}` if `outputs` does not list its directory."""
    recipe = context.inputs.recipe
    written = _outputs_mentioned(recipe)
    if written and not any(_includes_outputs(output) for output in recipe.outputs):
        what = "script" if recipe.launch.run else "command"
        message = f"the {what} writes to {written}, but `outputs` does not list that directory, so its files are lost"
        yield Issue(message, "add outputs/ to `outputs`")
    for message in paths_outside(recipe):
        yield Issue(message, "write below the work directory and list the path under outputs, or use {outputs}")


@check("nothing-kept", "note", "A run without outputs is reported before it costs anything.")
def results_collected(context: CheckContext) -> Iterator[Issue]:
    """Report a run for which only logs and metrics are kept."""
    recipe = context.inputs.recipe
    copied = recipe.checkpoint is not None and recipe.checkpoint.to is not None
    if not context.inputs.rehearsed and not (recipe.outputs or copied or recipe.storage):
        yield Issue("the recipe lists no outputs: only logs and metrics are downloaded", "add outputs: [outputs/]")


@check("checkpoint-kept", "warning", "A checkpoint on a spot node's local disk is lost with the node.", on_hosts=False)
def checkpoint_outlives_spot(context: CheckContext) -> Iterator[Issue]:
    """Report checkpoints that are not uploaded while the run is in progress. Outputs are downloaded only at its end."""
    checkpoint, recipe = context.inputs.recipe.checkpoint, context.inputs.recipe
    if checkpoint is None or not any(candidate.market == "spot" for candidate in context.candidate_list.candidates):
        return
    mounted = any(checkpoint.path.is_relative_to(storage.to) for storage in recipe.storage)
    if checkpoint.to is None and not mounted:
        message = f"checkpoints in {checkpoint.path} are stored only on the spot nodes' disks, and lost with a node"
        yield Issue(message, "--set checkpoint.to=s3://BUCKET/PREFIX")


@check("metric-limit", "warning", "A limit in the wrong direction makes the best runs fail.")
def limits_fit_direction(context: CheckContext) -> Iterator[Issue]:
    """Report `at_least` on a metric that is better when lower, and `at_most` on one that is better when higher."""
    for name, metric in context.inputs.recipe.metrics.items():
        wrong, right = ("at_least", "at_most") if metric.better == "lower" else ("at_most", "at_least")
        limit = getattr(metric, wrong)
        if limit is not None and getattr(metric, right) is None:
            worse = "lower" if wrong == "at_least" else "higher"
            message = (
                f"metrics.{name} is better when {metric.better}, but the run fails if it is {worse} than {limit:g}"
            )
            yield Issue(message, f"use {right} instead of {wrong}")


def paths_outside(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for every option of the command that writes outside the work directory and all storage."""
    mounted = [storage.to for storage in recipe.storage]
    for option, path in _written_paths(recipe):
        if not any(PurePosixPath(path).is_relative_to(to) for to in mounted):
            yield f"{option} {path} is outside the work directory, on a disk that is lost with the node"


def _outputs_mentioned(recipe: Recipe) -> str:
    """Return the name by which the command or script mentions its directory for outputs; empty if it does not."""
    if recipe.launch.run:
        variable = variable_name("outputs")
        return f"${variable}" if variable in recipe.launch.run else ""
    return "{outputs}" if _OUTPUTS.search(recipe.launch.command) else ""


def _includes_outputs(output: str) -> bool:
    """Return True if a pattern matches the directory `outputs` or a path below it."""
    return fnmatch("outputs", PurePosixPath(output).parts[0])


def _written_paths(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield (option, absolute path) pairs from the command, with parameters filled in."""
    try:
        words = shlex.split(recipe.launch.command)
    except ValueError:
        return  # recipe validation reports this problem
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


@check("checkpoint", "error", "Checkpoints that nodes cannot upload are lost with the nodes.")
def checkpoint_copied(context: CheckContext) -> Iterator[Issue]:
    """Report where checkpoints are uploaded and how to resume from them, or that nodes cannot upload checkpoints."""
    checkpoint = context.inputs.recipe.checkpoint
    if checkpoint is None or checkpoint.to is None:
        return
    if context.inputs.hosts is not None:
        message = f"checkpoint.to: self-managed hosts have no IAM role to write to {checkpoint.to}"
        yield Issue(message, f"remove it, and add {checkpoint.path}/ to outputs to download the checkpoints")
        return
    resume = command("--set", f"checkpoint.resume={checkpoint.to.replace('{run}', 'RUN')}")
    next_run = f"{resume} resumes from there" if "{run}" in checkpoint.to else "the next run resumes from there"
    yield Issue(f"the head node uploads checkpoints to {checkpoint.to} during the run; {next_run}", severity="note")


@check("outputs-to", "error", "Outputs that nodes cannot upload, or that another run overwrites, are missing from S3.")
def outputs_copied(context: CheckContext) -> Iterator[Issue]:
    """Report where outputs are uploaded and whether runs overwrite them, or that nodes cannot write to `outputs_to`."""
    to = context.inputs.recipe.outputs_to
    if to is None:
        return
    if context.inputs.hosts is not None:
        message = f"outputs_to: self-managed hosts have no IAM role to write to {to}"
        yield Issue(message, "remove it: outputs are downloaded to this machine")
        return
    overwritten = "" if "{run}" in to else "; the next run overwrites files of the same name"
    yield Issue(f"every node uploads its outputs to {to} when the run ends{overwritten}", severity="note")


@check(
    "upload-scope", "note", "A node can overwrite and delete what its role may write, including other runs' results."
)
def uploads_limited_to_run(context: CheckContext) -> Iterator[Issue]:
    """Report on which clusters the nodes may write the uploads of every run, and not only of their own."""
    recipe = context.inputs.recipe
    targets = [to for to in (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to) if to]
    if context.inputs.hosts is not None or not any("{run}" in to for to in targets):
        return
    places = " and ".join(to.replace("{run}", "*") for to in dict.fromkeys(targets) if "{run}" in to)
    message = f"nodes that `train` creates may write only their own run; nodes of `up` and of a matrix, all of {places}"
    yield Issue(message, severity="note")
