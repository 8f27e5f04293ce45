"""What can be known to fail before anything is bought: the work directory, and every rank's command."""

from pathlib import Path

from cloudgpu.errors import CloudGpuError, RecipeError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.launchers import launcher
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.run.job import Job
from cloudgpu.run.start import launch_context
from cloudgpu.ssh.transfer.local_tree import files_to_send


def check_feasible(plan: Plan, base: Path) -> None:
    """Try on paper what a run does with its recipe, for every candidate.

    Raises:
        RecipeError: The work directory cannot be sent, or the launcher refuses the recipe.
        UsageError: A candidate has no GPU and a rank a GPU was asked for.
    """
    recipe = plan.recipe
    if recipe.workdir is not None:
        try:
            files_to_send((base / recipe.workdir).resolve())
        except CloudGpuError as err:
            raise RecipeError(f"workdir: {err.message}", hint="it is a directory relative to the recipe") from err
    for gpus, candidate in {one.gpus_per_node: one for one in plan.candidates}.items():
        job = Job("on-paper", recipe, _on_paper(plan, candidate, gpus), "")
        data = {dataset.name: str(dataset.to) for dataset in recipe.data}
        launcher(recipe.launch.launcher)(recipe, job.inventory, launch_context(job, "/home/user", "python3", data))


def _on_paper(plan: Plan, candidate: Candidate, gpus: int) -> Inventory:
    nodes = tuple(
        Node(
            index=index,
            instance_id="",
            address="",
            port=0,
            user="",
            host_keys=(),
            private_address="",
            instance_type=candidate.instance_type,
            zone=candidate.zone,
            gpu=candidate.gpu,
            gpus=gpus,
            simulated=plan.simulated,
        )
        for index in range(min(plan.nodes, 2))
    )
    return Inventory("", nodes)
