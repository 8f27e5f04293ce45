"""Collect the catalog data about a GPU: instance types, supported software and replacements."""

from dataclasses import dataclass

from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.compatibility import latest, sm
from cloudgpu.catalog.gpu_spec import parse_gpu_spec
from cloudgpu.catalog.hardware import Gpu
from cloudgpu.catalog.ranking import Offer, SearchCriteria, rank_offers
from cloudgpu.catalog.replacements import Replacement, replacements
from cloudgpu.catalog.software import FrameworkImage, Software, TorchWheels
from cloudgpu.catalog.unsupported import doubtful_type, unsupported_gpu, unsupported_type
from cloudgpu.errors import RecipeError
from cloudgpu.text import command


@dataclass(frozen=True)
class Profile:
    """The catalog data about a GPU."""

    gpu: Gpu
    offers: tuple[Offer, ...]
    """Every type with the GPU, including retired types and machines outside AWS, priced in its cheapest region."""
    containers: tuple[FrameworkImage, ...]
    """Newest container of each framework with native code for the GPU."""
    wheels: tuple[TorchWheels, ...]
    """PyTorch wheels that run on the GPU."""
    replacements: tuple[Replacement, ...]
    note: str = ""
    """What to know about the instance type by which the GPU was requested, for example that it is retired."""


def profile(catalog: Catalog, software: Software, name: str, *, home_region: str) -> Profile:
    """Return the profile of a GPU, or of the GPU of an instance type. Case, dashes and spaces in a GPU are ignored."""
    gpu = find_gpu(catalog, name)
    matches = rank_offers(catalog, SearchCriteria(everything=True), "usd-per-hour", home_region=home_region)
    return Profile(
        gpu,
        tuple(offer for offer in matches.offers if offer.gpu.name == gpu.name),
        latest(software, gpu),
        tuple(wheels for wheels in software.torch if supports_gpu(wheels, gpu)),
        replacements(catalog, gpu, home_region=home_region),
        note=_note(catalog, name),
    )


def _note(catalog: Catalog, name: str) -> str:
    if name not in catalog.types:
        return ""
    return catalog.types[name].retirement or str(doubtful_type(name) or "")


def find_gpu(catalog: Catalog, name: str) -> Gpu:
    """Return a GPU by an informal name, spec or instance type: `v100`, `V100-32GB` or `p3dn.24xlarge`."""
    if name in catalog.types:
        return catalog.gpus[catalog.types[name].gpu]
    unsupported = unsupported_type(name) or unsupported_gpu(parse_gpu_spec(name).model)
    if unsupported is not None:
        raise RecipeError(str(unsupported), hint=command("cloudgpu", "gpus", "show", unsupported.replacement))
    folded = {_folded(known): known for known in catalog.gpus}
    known = folded.get(_folded(name)) or folded.get(_folded(parse_gpu_spec(name).model))
    return catalog.gpu(known or name)


def supports_gpu(wheels: TorchWheels, gpu: Gpu) -> bool:
    """Return True if the wheels have code for the GPU's compute capability or a lower one of the same major version."""
    return any(gpu.sm // 10 == sm(capability) // 10 and sm(capability) <= gpu.sm for capability in wheels.capabilities)


def _folded(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
