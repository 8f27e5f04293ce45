"""Does the software that the recipe names run on the GPUs that are left?"""

from collections.abc import Iterator

from cloudgpu.plan import software
from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.plan.plan import Severity


@check(
    "torch", "warning", "A PyTorch without kernels for the GPU fails at its first tensor, when the nodes are paid for."
)
def torch_fits(case: Case) -> Iterator[Found]:
    """Requirements that allow a PyTorch whose wheels lack the GPU."""
    python = case.question.recipe.environment.python
    if python is None:
        return
    severity: Severity = "note" if case.question.rehearsed else "warning"
    for name in dict.fromkeys(one.gpu for one in case.field.candidates):
        gpu = case.question.catalog.gpus[name]
        misfit = software.torch_misfit(python.requirements, gpu)
        if misfit:
            yield Found(misfit, f"require torch>=2.6,<{gpu.first_torch_without}", severity)
