"""What a field promises, and what of it this version or this place does not carry out."""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.text import command


@check("checkpoint", "error", "A checkpoint that is not copied anywhere is not believed to be safe.")
def checkpoint_copied(case: Case) -> Iterator[Found]:
    """`checkpoint.to` where nothing may write there, or where the next run would begin from nothing."""
    checkpoint = case.question.recipe.checkpoint
    if checkpoint is None or checkpoint.to is None:
        return
    if case.question.target == "ssh":
        message = f"checkpoint.to: hosts of one's own have no role that may write to {checkpoint.to}"
        yield Found(message, f"leave it out, and add {checkpoint.path}/ to outputs to bring them back")
        return
    resume = command("--set", f"checkpoint.resume={checkpoint.to.replace('{run}', 'RUN')}")
    again = f"{resume} goes on from there"
    later = again if "{run}" in checkpoint.to else "the next run goes on from there"
    yield Found(f"checkpoints go from the head to {checkpoint.to} while the run goes on; {later}", severity="note")


@check("outputs-to", "error", "Outputs that nothing may bring to their place are not believed to be there.")
def outputs_copied(case: Case) -> Iterator[Found]:
    """`outputs_to` where nothing may write there, or where the next run writes over what this one left."""
    to = case.question.recipe.outputs_to
    if to is None:
        return
    if case.question.target == "ssh":
        message = f"outputs_to: hosts of one's own have no role that may write to {to}"
        yield Found(message, "leave it out: outputs are brought to this machine")
        return
    later = "" if "{run}" in to else "; the next run writes over files of the same name"
    yield Found(f"outputs go from every node to {to} when the run has ended{later}", severity="note")


@check("idle", "warning", "Nobody relies on an idle cluster ending before its expiry.")
def idle_ended(case: Case) -> Iterator[Found]:
    """`budget.idle`."""
    if case.question.recipe.budget.idle is not None:
        yield Found("budget.idle: this version does not end idle clusters yet; the expiry does")
