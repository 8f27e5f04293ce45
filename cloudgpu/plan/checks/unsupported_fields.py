"""Check fields that this version or this target does not fully support."""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.text import command


@check("checkpoint", "error", "Checkpoints that nodes cannot upload are lost with the nodes.")
def checkpoint_copied(case: CheckInput) -> Iterator[Issue]:
    """Report where checkpoints are uploaded and how to resume from them, or that nodes cannot upload checkpoints."""
    checkpoint = case.question.recipe.checkpoint
    if checkpoint is None or checkpoint.to is None:
        return
    if case.question.hosts is not None:
        message = f"checkpoint.to: self-managed hosts have no IAM role to write to {checkpoint.to}"
        yield Issue(message, f"remove it, and add {checkpoint.path}/ to outputs to download the checkpoints")
        return
    resume = command("--set", f"checkpoint.resume={checkpoint.to.replace('{run}', 'RUN')}")
    next_run = f"{resume} resumes from there" if "{run}" in checkpoint.to else "the next run resumes from there"
    yield Issue(f"the head node uploads checkpoints to {checkpoint.to} during the run; {next_run}", severity="note")


@check("outputs-to", "error", "Outputs that nodes cannot upload, or that another run overwrites, are missing from S3.")
def outputs_copied(case: CheckInput) -> Iterator[Issue]:
    """Report where outputs are uploaded and whether runs overwrite them, or that nodes cannot write to `outputs_to`."""
    to = case.question.recipe.outputs_to
    if to is None:
        return
    if case.question.hosts is not None:
        message = f"outputs_to: self-managed hosts have no IAM role to write to {to}"
        yield Issue(message, "remove it: outputs are downloaded to this machine")
        return
    overwritten = "" if "{run}" in to else "; the next run overwrites files of the same name"
    yield Issue(f"every node uploads its outputs to {to} when the run ends{overwritten}", severity="note")


@check(
    "upload-scope", "note", "A node can overwrite and delete what its role may write, including other runs' results."
)
def uploads_limited_to_run(case: CheckInput) -> Iterator[Issue]:
    """Report on which clusters the nodes may write the uploads of every run, and not only of their own."""
    recipe = case.question.recipe
    targets = [to for to in (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to) if to]
    if case.question.hosts is not None or not any("{run}" in to for to in targets):
        return
    places = " and ".join(to.replace("{run}", "*") for to in dict.fromkeys(targets) if "{run}" in to)
    message = f"nodes that `train` creates may write only their own run; nodes of `up` and of a matrix, all of {places}"
    yield Issue(message, severity="note")


@check("idle", "warning", "An idle cluster costs money until it expires.")
def idle_unsupported(case: CheckInput) -> Iterator[Issue]:
    """Report `budget.idle`, which is not implemented yet."""
    if case.question.recipe.budget.idle is not None:
        yield Issue("budget.idle: this version does not delete idle clusters yet, so they run until their expiry")
