"""Check that the recipe's container can start and that no data or storage hides its files."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.recipe.rules.launch import flag_problems, hides_the_system
from cloudgpu.recipe.schema import Recipe

SETUP_IN_IMAGE: Final = "setup runs once per node, in the container's image; ranks run in the local image that it makes"


def runs_setup_in_image(recipe: Recipe) -> bool:
    """Return True if the recipe has a setup and a container."""
    return bool(recipe.setup) and recipe.environment.container is not None


@check("container", "warning", "Runs in a container are not started on nodes that cannot run containers.")
def container_runs(case: CheckInput) -> Iterator[Issue]:
    """Report a container in a rehearsal, whose nodes cannot run containers."""
    recipe = case.question.recipe
    container = recipe.environment.container
    if container is not None and case.question.rehearsed:
        fix = "add a rehearsal section with another environment to the recipe"
        what = "setup and the command are" if recipe.setup else "the command is"
        yield Issue(f"{what} not run, because rehearsal nodes cannot run containers: {container.image}", fix)


@check("container-setup", "note", "The result of setup stays on the nodes as a local image.")
def setup_runs_in_image(case: CheckInput) -> Iterator[Issue]:
    """Report that setup runs in the image, and how the result is stored."""
    if runs_setup_in_image(case.question.recipe) and not case.question.rehearsed:
        yield Issue(SETUP_IN_IMAGE)


@check(
    "container-flags",
    "error",
    "Flags that conflict with cloudgpu's own make the container fail at startup or outlive the run.",
)
def flags_fit(case: CheckInput) -> Iterator[Issue]:
    """Report entries of `environment.container.flags` that are invalid or that cloudgpu sets itself."""
    container = case.question.recipe.environment.container
    for flag, problem in flag_problems(container.flags if container else ()):
        # The value after the equals sign may be a secret.
        yield Issue(f"{flag.partition('=')[0]}: {problem}", "remove it from environment.container.flags")


@check("container-mounts", "error", "Data mounted over a system directory hides files that the image needs.")
def mounts_hide_nothing(case: CheckInput) -> Iterator[Issue]:
    """Report data or storage whose mount point would hide files that the image needs."""
    recipe = case.question.recipe
    if recipe.environment.container is None:
        return
    data_paths = [(f"data {data.name}", data.to) for data in recipe.data]
    storage_paths = [(f"storage {storage.name}", storage.to) for storage in recipe.storage]
    for name, path in [*data_paths, *storage_paths]:
        if hides_the_system(path):
            yield Issue(
                f"{name} at {path} would hide the image's own files", "choose another directory, for example /data"
            )
