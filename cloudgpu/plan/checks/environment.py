"""What a rank finds around it: container, variables, secrets."""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import Case, Found, check


@check("container", "error", "A run in a container is not started where containers cannot be run.")
def container_runs(case: Case) -> Iterator[Found]:
    """Containers, which this version cannot run yet."""
    container = case.question.recipe.environment.container
    if container is None:
        return
    if case.question.rehearsed:
        fix = "give the recipe a rehearsal section with another environment"
        yield Found(f"not run: needs {container.image}", fix, "warning")
    else:
        yield Found(f"{container.image}: this version cannot run containers yet", "use environment.python")


@check("secrets", "note", "Whoever starts the run knows which of the variables around it go along.")
def secrets_asked(case: Case) -> Iterator[Found]:
    """The secrets that the caller's environment must hold."""
    secrets = case.question.recipe.environment.secrets
    if secrets:
        yield Found(f"taken from your environment and never stored: {', '.join(secrets)}")
