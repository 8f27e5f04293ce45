"""Check that the files that a recipe names are sent to the nodes."""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.recipe.problem import format_path


@check("local-files", "error", "A run without one of its files fails only after the nodes have been launched.")
def local_files_exist(case: CheckInput) -> Iterator[Issue]:
    """Report programs and requirement files that are not in the work directory."""
    for file in case.question.quotes.survey.files:
        message = f"{format_path(file.path)}: {file.message}"
        yield Issue(message, file.fix, "error" if file.certain else "warning")
