"""Check that the keys, roles and network resources named in the settings or the recipe exist in the account."""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import CheckInput, Issue, check


@check("named", "error", "A missing key, role or network is reported before anything is launched.")
def named_resources_exist(case: CheckInput) -> Iterator[Issue]:
    """Report named resources that are missing or could not be checked."""
    survey = case.question.quotes.survey
    if survey.regions_unknown:
        yield Issue(f"cannot tell which regions the account has enabled: {survey.regions_unknown}", severity="unknown")
    for resource in survey.named:
        where = f" in {resource.region}" if resource.region else ""
        if resource.presence == "missing":
            fix = (
                f"correct the setting {resource.setting}: `cloudgpu config`"
                if resource.setting
                else f"create it, or specify another {resource.kind}"
            )
            yield Issue(f"{resource.kind} {resource.name} does not exist{where}", fix)
        elif resource.presence == "unknown":
            yield Issue(
                f"cannot tell whether {resource.kind} {resource.name} exists{where}: {resource.why}", severity="unknown"
            )
