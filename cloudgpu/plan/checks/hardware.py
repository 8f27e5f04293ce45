"""Is what the recipe names there at all, and is anything left of it?"""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.plan.question import types_meant
from cloudgpu.recipe.nearest import nearest, suggestion


@check("instance-type", "error", "An instance type that nobody knows is never taken for one that cannot be had.")
def instance_types_known(case: Case) -> Iterator[Found]:
    """Names of types that the catalogue does not have."""
    types = case.question.catalog.types
    for wish in case.question.wishes:
        if "." in wish and wish not in types:
            fix = nearest(wish, [name for name, kind in types.items() if not kind.retired])
            hint = f"--set resources.instance_type={fix}" if fix else ""
            yield Found(f"unknown instance type {wish}{suggestion(wish, types)}", hint)


@check("gpu", "error", "A GPU that nobody knows, or a count that no type has, is named before anything is looked for.")
def gpus_known(case: Case) -> Iterator[Found]:
    """Names of GPUs that the catalogue does not have, and counts in which they do not come."""
    catalog = case.question.catalog
    for wish in case.question.wishes:
        gpu, _, count = wish.partition(":")
        if "." in wish:
            continue
        if gpu not in catalog.gpus:
            near = nearest(gpu, catalog.gpus)
            hint = f"--set resources.gpu={near}:{count}" if near else f"known GPUs: {', '.join(catalog.gpus)}"
            yield Found(f"unknown GPU {gpu}{suggestion(gpu, catalog.gpus)}", hint)
        elif not types_meant(wish, catalog):
            counts = sorted({kind.gpus for kind in catalog.types.values() if kind.gpu == gpu and not kind.retired})
            sizes = ", ".join(f"{gpu}:{size}" for size in counts)
            message = f"no instance type has {count} {gpu}; there are {sizes or 'none'}"
            yield Found(message, f"--set resources.gpu={gpu}:{counts[-1]}" if counts else "")


@check("region", "error", "A mistyped region does not silently leave the others to do its work.")
def regions_known(case: Case) -> Iterator[Found]:
    """Regions that the catalogue does not have."""
    regions = case.question.catalog.regions
    for region in case.question.regions:
        if region not in regions:
            near = nearest(region, regions)
            fix = f"--set resources.regions={near}" if near else ""
            yield Found(f"unknown region {region}{suggestion(region, regions)}", fix)


@check("left-out", "error", "What the recipe names and cannot be had is never dropped quietly: the rule is named.")
def left_out(case: Case) -> Iterator[Found]:
    """What the rules threw out: fatal when nothing else is left."""
    for one in case.field.left_out:
        if case.field.candidates:
            yield Found(f"left out: {one.message}", one.fix, "warning", rule=one.check)
        else:
            yield Found(one.message, one.fix, rule=one.check)


@check(
    "candidates", "error", "A plan without candidates is never applied, even if nothing else can say why it has none."
)
def nothing_left(case: Case) -> Iterator[Found]:
    """No candidate, and no rule that threw one out."""
    question, field = case.question, case.field
    if question.types and question.known_regions == question.regions and not field.candidates and not field.left_out:
        yield Found(f"no zone of {', '.join(question.regions)} can be used for this recipe")
