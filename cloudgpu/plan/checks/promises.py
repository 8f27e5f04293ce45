"""Fields that this version reads and does not carry out: said, for a silently ignored one costs money."""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import Case, Found, check


@check("checkpoint", "warning", "A checkpoint that is not copied anywhere is not believed to be safe.")
def checkpoint_copied(case: Case) -> Iterator[Found]:
    """`checkpoint.to`."""
    checkpoint = case.question.recipe.checkpoint
    if checkpoint is not None and checkpoint.to is not None:
        message = "checkpoint.to: this version does not copy checkpoints yet"
        yield Found(message, f"add {checkpoint.path}/ to outputs to bring them back")


@check("idle", "warning", "Nobody relies on an idle cluster ending before its expiry.")
def idle_ended(case: Case) -> Iterator[Found]:
    """`budget.idle`."""
    if case.question.recipe.budget.idle is not None:
        yield Found("budget.idle: this version does not end idle clusters yet; the expiry does")
