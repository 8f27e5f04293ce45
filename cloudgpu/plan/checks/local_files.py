"""Check that the nodes get what the recipe's author wrote: its files, and its parameters."""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.recipe.problem import format_path

_SHOWN: Final = 3
_LONGEST: Final = 200


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


@check("secret-files", "warning", "Everybody who can log in to a node can read what is uploaded to it.")
def no_secret_files(case: CheckInput) -> Iterator[Issue]:
    """Report files in the work directory or a dataset that usually hold secrets, such as `.env` and `.aws`."""
    for upload in case.question.quotes.survey.uploads:
        if upload.secret_files:
            message = f"files that usually hold secrets are in the {upload.what}: {_first(upload.secret_files)}"
            lines = ", ".join(upload.secret_lines)
            yield Issue(message, f"to leave them out, add these lines to .cloudgpuignore in this directory: {lines}")


@check(
    "not-sent", "warning", "A run that needs a file which is not sent fails only after the nodes have been launched."
)
def everything_sent(case: CheckInput) -> Iterator[Issue]:
    """Report files in the work directory that cannot be sent, such as links that point outside the directory."""
    for upload in case.question.quotes.survey.uploads:
        if upload.skipped:
            message = f"these files in the {upload.what} are not sent: {_first(upload.skipped)}"
            yield Issue(message, "replace links with their targets, or exclude the files in .cloudgpuignore")


def _first(names: Sequence[str]) -> str:
    shown = ", ".join(name[:_LONGEST] for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
