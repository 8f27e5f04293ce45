"""A recipe's container: whether it is run at all, and what would keep it from starting or hide its own files."""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.recipe.container_flags import flag_problems, hides_the_system


@check("container", "warning", "A run in a container is not started where containers cannot be run.")
def container_runs(case: Case) -> Iterator[Found]:
    """Containers on the rehearsal cloud, whose nodes run none."""
    container = case.question.recipe.environment.container
    if container is not None and case.question.rehearsed:
        fix = "give the recipe a rehearsal section with another environment"
        yield Found(f"not run: needs {container.image}", fix)


@check("container-flags", "error", "An option that a run sets itself ends it at its start, or lets it outlive its end.")
def flags_fit(case: Case) -> Iterator[Found]:
    """Options of `docker run` in `environment.container.flags` that are none, or that the run itself sets."""
    container = case.question.recipe.environment.container
    for flag, wrong in flag_problems(container.flags if container else ()):
        # What stands behind the equals sign may be a secret.
        yield Found(f"{flag.partition('=')[0]}: {wrong}", "take it out of environment.container.flags")


@check("container-mounts", "error", "Data over a system directory hides the programs of the image.")
def nothing_hidden(case: Case) -> Iterator[Found]:
    """Data or storage at a path where the image keeps what it needs to run."""
    recipe = case.question.recipe
    if recipe.environment.container is None:
        return
    placed = [(f"data {one.name}", one.to) for one in recipe.data]
    for name, place in [*placed, *((f"storage {one.name}", one.to) for one in recipe.storage)]:
        if hides_the_system(place):
            yield Found(f"{name} lies at {place}, over the image's own", "choose another directory, as /data")
