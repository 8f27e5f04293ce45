"""What the settings and the recipe name in the account: keys, roles, parts of a network."""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import Case, Found, check


@check("named", "error", "A key, role or network that does not exist is found before the launch that needs it.")
def named_things_there(case: Case) -> Iterator[Found]:
    """What is named and missing, or could not be looked at."""
    survey = case.question.quotes.survey
    if survey.regions_unknown:
        yield Found(f"which regions the account has enabled is unknown: {survey.regions_unknown}", severity="unknown")
    for one in survey.named:
        where = f" in {one.region}" if one.region else ""
        if one.presence == "missing":
            fix = f"correct the setting {one.setting}: `cloudgpu config`" if one.setting else "make it, or name another"
            yield Found(f"there is no {one.kind} {one.name}{where}", fix)
        elif one.presence == "unknown":
            yield Found(f"{one.kind} {one.name}{where}: whether it is there is unknown: {one.why}", severity="unknown")
