"""Check the work directory and every rank's command before any instance is launched."""

from pathlib import Path

from cloudgpu.errors import CloudGpuError, RecipeError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.launchers.registry import launcher
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.run.job import Job
from cloudgpu.run.start import launch_context
from cloudgpu.ssh.transfer.local_tree import files_to_send


def check_feasible(plan: Plan, base: Path) -> None:
    """Check that the work directory can be uploaded, and build the launch commands without running them.

    Raises:
        RecipeError: The work directory cannot be uploaded, or the launcher rejected the recipe.
        UsageError: The recipe requests one rank per GPU, but a candidate has no GPU.
    """
    recipe = plan.recipe
    if recipe.workdir is not None:
        try:
            files_to_send((base / recipe.workdir).resolve())
        except CloudGpuError as err:
            raise RecipeError(
                f"workdir: {err.message}", hint="set `workdir` to the path of a directory, relative to the recipe"
            ) from err
    for gpus, candidate in {candidate.gpus_per_node: candidate for candidate in plan.candidates}.items():
        job = Job("on-paper", recipe, _placeholder_inventory(plan, candidate, gpus), "")
        data = {dataset.name: str(dataset.to) for dataset in recipe.data}
        launcher(recipe.launch.launcher)(recipe, job.inventory, launch_context(job, "/home/user", "python3", data))


def _placeholder_inventory(plan: Plan, candidate: Candidate, gpus: int) -> Inventory:
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
