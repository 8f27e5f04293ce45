"""Ranks: how many there are, and whether what starts them can work."""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import Case, Found, check

RANKS_ON_ONE_MACHINE = 16


@check("ranks", "error", "Ranks without a GPU each fail at their first step; a number that depends on luck surprises.")
def ranks_fit(case: Case) -> Iterator[Found]:
    """More ranks than GPUs, a number that depends on the type, or too many rehearsed on one machine."""
    question, plan = case.question, case.plan
    ranks = question.recipe.launch.ranks_per_node
    if question.rehearsed:
        total = plan.nodes * plan.ranks_per_node
        if total > RANKS_ON_ONE_MACHINE:
            message = f"all {total} ranks run on this machine"
            yield Found(message, "--set rehearsal.ranks_per_node=1", "warning")
        return
    sizes = {one.instance_type: one.gpus_per_node for one in case.field.candidates}
    for name, gpus in sizes.items():
        if ranks != "gpus" and ranks > gpus:
            message = f"{ranks} ranks on a node, but {name} has {gpus} GPU{'s' if gpus > 1 else ''}"
            yield Found(message, "--set launch.ranks_per_node=gpus")
    if ranks == "gpus" and len(set(sizes.values())) > 1:
        listed = ", ".join(f"{gpus} on {name}" for name, gpus in sizes.items())
        yield Found(f"the number of ranks a node depends on what can be had: {listed}", severity="warning")
