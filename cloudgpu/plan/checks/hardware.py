"""Check that GPUs, instance types and regions exist, and that candidates remain."""

from collections.abc import Iterator

from cloudgpu.catalog.gpu_spec import find_spec_mismatch
from cloudgpu.catalog.partitions import unsupported_partition
from cloudgpu.catalog.unsupported import doubtful_type
from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.recipe.name_suggestions import nearest_name, suggestion
from cloudgpu.text import command


@check("instance-type", "error", "A mistyped instance type is reported as unknown, not as unavailable.")
def instance_types_known(case: CheckInput) -> Iterator[Issue]:
    """Report instance types that are not in the catalog or not offered by AWS."""
    for spec in case.question.specs:
        problem = find_spec_mismatch(spec, case.question.catalog)
        if problem is not None and problem.about == "instance-type":
            yield Issue(problem.message, problem.fix)


@check("gpu", "error", "An unknown GPU, or a count that no type has, is reported as such, not as unavailable.")
def gpus_known(case: CheckInput) -> Iterator[Issue]:
    """Report unknown GPUs, and counts or memory sizes that do not exist."""
    for spec in case.question.specs:
        problem = find_spec_mismatch(spec, case.question.catalog)
        if problem is not None and problem.about == "gpu":
            yield Issue(problem.message, problem.fix)


@check("region", "error", "A mistyped region is an error and is not silently ignored.")
def regions_known(case: CheckInput) -> Iterator[Issue]:
    """Report regions that are not in the catalog or that belong to another partition of AWS."""
    regions = case.question.catalog.regions
    for region in case.question.regions:
        if unsupported := unsupported_partition(region):
            yield Issue(unsupported, "--set resources.regions=us-east-1, with an account of the partition aws")
        elif region not in regions:
            similar = nearest_name(region, regions)
            fix = command("--set", f"resources.regions={similar}") if similar else ""
            yield Issue(f"unknown region {region}{suggestion(region, regions)}", fix)


@check("left-out", "error", "Requested hardware that is excluded is always reported, together with the rule.")
def excluded_candidates(case: CheckInput) -> Iterator[Issue]:
    """Report exclusions: as errors if no candidate is left, otherwise as warnings."""
    for exclusion in case.field.left_out:
        if case.field.candidates:
            yield Issue(f"excluded: {exclusion.message}", exclusion.fix, "warning", rule=exclusion.check)
        else:
            yield Issue(exclusion.message, exclusion.fix, rule=exclusion.check)


@check(
    "candidates", "error", "A plan without candidates is never applied, even if no rule explains why there are none."
)
def no_candidates(case: CheckInput) -> Iterator[Issue]:
    """Report that there are no candidates although no rule excluded any."""
    question, field = case.question, case.field
    if question.types and question.known_regions == question.regions and not field.candidates and not field.left_out:
        yield Issue(f"the recipe cannot use any zone of {', '.join(question.regions)}")


@check("new-account", "note", "AWS may refuse an old type to an account that has never used it.")
def available_to_new_accounts(case: CheckInput) -> Iterator[Issue]:
    """Report types that a new account may not be able to launch, and the nearest type that it can."""
    if case.question.rehearsed or case.question.hosts is not None or case.question.recipe.resources.reservation:
        return
    for name in dict.fromkeys(candidate.instance_type for candidate in case.field.candidates):
        doubt = doubtful_type(name)
        if doubt is not None:
            yield Issue(str(doubt), command("--set", f"resources.instance_type={doubt.replacement}"))


@check("gang", "note", "Results from different GPUs are not comparable, and a checkpoint must fit every GPU.")
def same_gpu_in_all_attempts(case: CheckInput) -> Iterator[Issue]:
    """Report that attempts may use different GPUs. All nodes of one attempt have the same type."""
    kinds = dict.fromkeys(f"{candidate.gpu} {candidate.gpu_memory_gib:f} GiB" for candidate in case.field.candidates)
    if len(kinds) > 1:
        yield Issue(f"the GPU depends on availability and is the same on all nodes: {' or '.join(kinds)}")


@check("image-region", "error", "A machine image ID exists in one region only.")
def image_in_every_region(case: CheckInput) -> Iterator[Issue]:
    """Report an `ami-...` image if the recipe lists several regions."""
    image, regions = case.question.recipe.resources.image or "", case.question.regions
    if image.startswith("ami-") and len(regions) > 1:
        message = f"{image} exists in one region only, but the recipe lists {len(regions)}"
        yield Issue(message, command("--set", f"resources.regions={regions[0]}"))


@check("image-state", "warning", "AWS still launches a deprecated image, but sells some images only by subscription.")
def image_current(case: CheckInput) -> Iterator[Issue]:
    """Report machine images that are deprecated, need a Marketplace subscription, or could not be read."""
    question, types = case.question, case.question.catalog.types
    images = dict.fromkeys(
        (question.image(types[candidate.instance_type], candidate.region), candidate.region)
        for candidate in case.field.candidates
    )
    for image, region in images:
        seen = question.quotes.machine_images.get((image, region))
        if seen is None:
            continue
        name = f"machine image {image} in {region}"
        if seen.presence == "unknown":
            yield Issue(f"cannot tell whether {name} exists: {seen.why}", severity="unknown")
        if seen.deprecated_on is not None and seen.deprecated_on <= question.today:
            yield Issue(f"{name} is deprecated since {seen.deprecated_on}", "set resources.image to a newer image")
        if seen.product_codes:
            products = ", ".join(seen.product_codes)
            yield Issue(f"{name} needs a subscription to {products}", "subscribe to it in AWS Marketplace once")
