"""Datasets: can they be brought to the nodes, and do they fit there?"""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import Case, Found, check


@check("data", "error", "A way of bringing data that this version does not carry out is refused, not ignored.")
def data_can_be_staged(case: Case) -> Iterator[Found]:
    """Datasets that are to be mounted."""
    for data in case.question.recipe.data:
        if data.mode == "mount":
            message = f"dataset {data.name}: this version cannot mount data yet"
            yield Found(message, f"write mode: copy for {data.name}")
