"""Is what the recipe names there at all, and is anything left of it?"""

from collections.abc import Iterator

from cloudgpu.catalog.gpu_spec import misfit
from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.recipe.nearest import nearest, suggestion
from cloudgpu.text import command


@check("instance-type", "error", "An instance type that nobody knows is never taken for one that cannot be had.")
def instance_types_known(case: Case) -> Iterator[Found]:
    """Names of types that the catalogue does not have, and of machines that AWS does not have."""
    for spec in case.question.specs:
        found = misfit(spec, case.question.catalog)
        if found is not None and found.about == "instance-type":
            yield Found(found.message, found.fix)


@check("gpu", "error", "A GPU that nobody knows, or a count that no type has, is named before anything is looked for.")
def gpus_known(case: Case) -> Iterator[Found]:
    """Names of GPUs that the catalogue does not have, and counts and sizes in which they do not come."""
    for spec in case.question.specs:
        found = misfit(spec, case.question.catalog)
        if found is not None and found.about == "gpu":
            yield Found(found.message, found.fix)


@check("region", "error", "A mistyped region does not silently leave the others to do its work.")
def regions_known(case: Case) -> Iterator[Found]:
    """Regions that the catalogue does not have."""
    regions = case.question.catalog.regions
    for region in case.question.regions:
        if region not in regions:
            near = nearest(region, regions)
            fix = command("--set", f"resources.regions={near}") if near else ""
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


@check("gang", "note", "Attempts on different GPUs are no comparison, and a checkpoint must fit both.")
def gang_alike(case: Case) -> Iterator[Found]:
    """Nodes of one attempt are always of one type; those of the next one may have other GPUs."""
    kinds = dict.fromkeys(f"{one.gpu} {one.gpu_memory_gib:f} GiB" for one in case.field.candidates)
    if len(kinds) > 1:
        yield Found(f"what can be had decides the GPU, alike within an attempt: {' or '.join(kinds)}")


@check("image-region", "error", "A machine image by its id exists in one region alone.")
def image_in_every_region(case: Case) -> Iterator[Found]:
    """`ami-...` beside several regions."""
    image, regions = case.question.recipe.resources.image or "", case.question.regions
    if image.startswith("ami-") and len(regions) > 1:
        message = f"{image} is an image of one region, and {len(regions)} are named"
        yield Found(message, command("--set", f"resources.regions={regions[0]}"))
