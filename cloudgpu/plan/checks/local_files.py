"""Check that the nodes get what the recipe's author wrote: its files, and its parameters."""

import json
from collections.abc import Iterator

from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.recipe.problem import format_path


@check("local-files", "error", "A run without one of its files fails only after the nodes have been launched.")
def local_files_exist(case: CheckInput) -> Iterator[Issue]:
    """Report programs and requirement files that are not in the work directory."""
    for file in case.question.quotes.survey.files:
        message = f"{format_path(file.path)}: {file.message}"
        yield Issue(message, file.fix, "error" if file.certain else "warning")


@check("params-changed", "warning", "YAML reads an unquoted 3.10 as the number 3.1, which is another version.")
def params_as_written(case: CheckInput) -> Iterator[Issue]:
    """Report parameters that YAML changes: a warning if the text may be a version or a name, otherwise a note."""
    for param in case.question.quotes.survey.changed_params:
        fix = f"write {json.dumps(param.written)} in quotes to pass it as it is written"
        message = f"params.{param.name}: YAML reads {param.written} as {param.passed}"
        yield Issue(message, fix, "warning" if param.looks_like_text else "note")
