"""Render everything known about one GPU, as text and as JSON."""

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

from cloudgpu.catalog.compatibility import FrameworkImage, Profile, TorchWheels
from cloudgpu.catalog.gpu_spec import spec_name
from cloudgpu.catalog.hardware import Gpu
from cloudgpu.catalog.ranking import Offer, Replacement
from cloudgpu.cli.render.gpus import availability_remark, format_price, format_price_age, offer_json
from cloudgpu.cli.terminal.number_format import amount, money
from cloudgpu.cli.terminal.output import Row
from cloudgpu.cli.terminal.table import Column, Table, definition_lines
from cloudgpu.cli.terminal.wrapping import wrap_paragraph
from cloudgpu.text import command

UNKNOWN = "unknown"
_WIDTH = 116
_LABELS = {
    "first_cuda": "first CUDA",
    "last_cuda_major": "last CUDA",
    "last_cudnn": "last cuDNN",
    "first_ngc": "first NGC release",
    "last_ngc": "last NGC release",
    "first_torch_without": "PyTorch's default wheels",
    "last_torch": "last PyTorch",
    "nvlink_links": "NVLink",
    "nccl_link_gb_s": "NCCL link rate",
    "pcie": "PCIe",
    "tdp_w": "power",
    "ecc": "ECC",
    "replacement": "closest GPU that AWS offers",
    "image": "machine image",
}
"""Labels of a GPU's fields in the list of sources. Fields that are not listed here are labeled by their name."""
_RATES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")


_CONTAINER = (Column(), Column(whole=True), Column(priority=1))
_WHEELS = (Column(), Column(narrow="wrap"), Column(narrow="wrap", priority=1))
_TYPE = (
    Column(),
    Column(priority=1),
    Column(priority=1),
    Column(priority=2),
    Column(priority=4),
    Column(priority=3),
)
_REPLACEMENT = (Column(), Column(), Column(), Column(priority=2), Column(priority=3))


def profile_lines(profile: Profile, today: date, width: int | None = None, *, sources: bool = False) -> list[str]:
    """Return blocks for a GPU's hardware, software, containers, wheels, types, replacements and next steps.

    With `sources`, also return where the values come from.
    """
    gpu = profile.gpu
    return [
        f"{gpu.name}: {gpu.architecture}, compute capability {gpu.compute_capability} (sm_{gpu.sm})",
        *(wrap_paragraph(profile.note, width or _WIDTH) if profile.note else ()),
        *_block("hardware", _hardware(gpu), width),
        *_block("software", _software(gpu), width),
        *_table(
            "last containers with native code for it",
            Table(_CONTAINER, [_container(container) for container in profile.containers], "  "),
            width,
        ),
        *_table(
            "PyTorch wheels that run on it",
            Table(_WHEELS, [_wheels(wheels) for wheels in profile.wheels], "  "),
            width,
        ),
        *_table(
            "instance types (cheapest region of each, on demand)",
            Table(_TYPE, [_type(offer, today) for offer in profile.offers], "  "),
            width,
        ),
        *_table("replacements", Table(_REPLACEMENT, _replacements(profile), "  "), width),
        *(_sources(profile, min(width or _WIDTH, _WIDTH)) if sources else ()),
        *_next(profile, width, sources=sources),
    ]


def profile_json(profile: Profile) -> dict[str, Any]:
    """Return the profile as JSON. Null means unknown or, for the fields that json.md lists, no upper bound."""
    gpu = profile.gpu
    return {
        "gpu": gpu.name,
        "note": profile.note or None,
        "architecture": gpu.architecture,
        "compute_capability": gpu.compute_capability,
        "memories": [{"gib": amount(memory.gib), "bandwidth_gb_s": memory.bandwidth_gb_s} for memory in gpu.memories],
        "rates_tflop_s": {name: _exact(getattr(gpu.rates, name)) for name in _RATES},
        "nvlink_links": gpu.nvlink_links,
        "nccl_link_gb_s": _exact(gpu.nccl_link_gb_s),
        "pcie": gpu.pcie,
        "tdp_w": gpu.tdp_w,
        "ecc": gpu.ecc,
        "driver": {"first": gpu.first_driver, "last": gpu.last_driver, "modules": list(gpu.modules)},
        "cuda": {"first": gpu.first_cuda, "last_major": gpu.last_cuda_major},
        "last_cudnn": gpu.last_cudnn,
        "ngc": {"first": gpu.first_ngc, "last": gpu.last_ngc},
        "torch": {"first_default_without": gpu.first_torch_without, "last": gpu.last_torch},
        "image_parameter": gpu.image,
        "replacement": gpu.replacement,
        "containers": [
            {
                "framework": container.framework,
                "image": container.image,
                "recalled": container.recalled,
                "source": container.source,
            }
            for container in profile.containers
        ],
        "wheels": [
            {"cuda": wheels.cuda, "first": wheels.first, "last": wheels.last, "source": wheels.source}
            for wheels in profile.wheels
        ],
        "offers": [offer_json(offer) for offer in profile.offers],
        "replacements": [_replacement_json(replacement) for replacement in profile.replacements],
        "sources": dict(profile.gpu.sources),
    }


def values_by_source(profile: Profile) -> dict[tuple[str, str], list[str]]:
    """Map each (kind of value, source) to the names of the values. The kind is a prefix such as `price of `."""
    rows = [
        *(("", _LABELS.get(name, name.replace("_", " ")), text) for name, text in profile.gpu.sources.items()),
        *(("container for ", container.framework, container.source) for container in profile.containers),
        *(("wheels for ", wheels.cuda, wheels.source) for wheels in profile.wheels),
        *(("price of ", offer.kind.name, offer.kind.source) for offer in profile.offers),
    ]
    merged: dict[tuple[str, str], list[str]] = {}
    for kind, name, text in rows:
        merged.setdefault((kind, text), []).append(name)
    return merged


def _hardware(gpu: Gpu) -> Iterator[Row]:
    sizes = [f"{amount(memory.gib)} GiB at {memory.bandwidth_gb_s or UNKNOWN} GB/s" for memory in gpu.memories]
    yield "memory", ", or ".join(sizes) or UNKNOWN
    have = [(name, getattr(gpu.rates, name)) for name in _RATES]
    known = [f"{name.upper()} {rate:f}" for name, rate in have if rate is not None]
    missing = [name.upper() for name, rate in have if rate is None]
    yield "rates", f"{', '.join(known)} (1e12 operations per second, dense)" if known else UNKNOWN
    if known and missing:
        yield "", f"not supported or unknown: {', '.join(missing)}"
    yield "NVLink", _nvlink(gpu)
    yield "PCIe", gpu.pcie or UNKNOWN
    yield "power", UNKNOWN if gpu.tdp_w is None else f"{gpu.tdp_w} W"
    yield "ECC", {None: UNKNOWN, True: "yes", False: "no"}[gpu.ecc]


def _nvlink(gpu: Gpu) -> str:
    if gpu.nvlink_links is None:
        return UNKNOWN
    if not gpu.nvlink_links:
        return "none"
    each = "" if gpu.nccl_link_gb_s is None else f", each {gpu.nccl_link_gb_s:f} GB/s per direction in NCCL's model"
    return f"{gpu.nvlink_links} links{each}"


def _software(gpu: Gpu) -> Iterator[Row]:
    modules = " or ".join(gpu.modules)
    only = f"{modules} kernel modules{' only' if len(gpu.modules) == 1 else ''}"
    yield "driver", f"{format_version_range(_branch(gpu.first_driver), _branch(gpu.last_driver))}; {only}"
    yield (
        "CUDA",
        format_version_range(gpu.first_cuda, None if gpu.last_cuda_major is None else f"{gpu.last_cuda_major}.x"),
    )
    yield "cuDNN", "still supported" if gpu.last_cudnn is None else f"up to {gpu.last_cudnn}"
    yield "NGC releases", "none" if gpu.first_ngc is None else format_version_range(gpu.first_ngc, gpu.last_ngc)
    yield "PyTorch", _torch(gpu)
    yield "machine image", gpu.image


def _torch(gpu: Gpu) -> str:
    if gpu.first_torch_without is None:
        return "pip's default wheels run on it" if gpu.last_torch is None else f"up to {gpu.last_torch}"
    others = gpu.last_torch is not None and _version(gpu.last_torch) >= _version(gpu.first_torch_without)
    last = f", wheels from other indexes up to {gpu.last_torch}" if others else ""
    return f"pip's default wheels below {gpu.first_torch_without}{last}"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def format_version_range(first: str | None, last: str | None) -> str:
    """Format a version range: `R384 to R580`, `R450 and later`, or `unknown to R580`."""
    begin = UNKNOWN if first is None else first
    if begin == last:
        return begin
    return f"{begin} and later" if last is None else f"{begin} to {last}"


def _branch(branch: int | None) -> str | None:
    return None if branch is None else f"R{branch}"


def _container(image: FrameworkImage) -> tuple[str, ...]:
    return image.framework, image.image, "tag not verified" if image.recalled else ""


def _wheels(wheels: TorchWheels) -> tuple[str, ...]:
    default = ""
    if wheels.default_from is not None:
        default = f"pip's default: {format_version_range(wheels.default_from, wheels.default_to)}"
    return wheels.cuda, f"PyTorch {format_version_range(wheels.first, wheels.last)}", default


def _type(offer: Offer, today: date) -> tuple[str, ...]:
    instance_type = offer.kind
    read = "" if offer.priced_on is None else f"read {format_price_age(offer.priced_on, today)} ago"
    size = f"{instance_type.gpus} x {amount(instance_type.gpu_memory_gib)} GiB"
    hourly = f"{UNKNOWN} price" if offer.hourly_usd is None else f"{format_price(offer)}/h"
    block = "" if offer.block_usd is None else f", {money(offer.block_usd)}/h in a Capacity Block"
    return instance_type.name, size, f"{hourly}{block}", offer.region or "", read, availability_remark(offer)


def _replacements(profile: Profile) -> list[tuple[str, ...]]:
    newer = [row for replacement in profile.replacements for row in _replaced(replacement)]
    return [*_successor(profile.gpu), *newer]


def _successor(gpu: Gpu) -> Iterator[tuple[str, ...]]:
    if gpu.replacement is not None:
        yield "", "closest GPU that AWS offers", gpu.replacement, "", ""


def _replaced(replacement: Replacement) -> Iterator[tuple[str, ...]]:
    yield f"for {amount(replacement.gib)} GiB", "cheapest with as much memory", *_stand_in(replacement.cheapest)
    yield "", "newer, with as much memory", *_stand_in(replacement.newer)


def _stand_in(offer: Offer | None) -> tuple[str, str, str]:
    if offer is None or offer.usd_per_gpu_h is None:
        return "none available at a known price", "", ""
    what = f"{offer.gpu.name} {amount(offer.kind.gpu_memory_gib)} GiB ({offer.gpu.architecture})"
    return what, f"{money(offer.usd_per_gpu_h)} per GPU-hour", f"{offer.kind.name} in {offer.region}"


def _replacement_json(replacement: Replacement) -> dict[str, Any]:
    return {
        "gib": amount(replacement.gib),
        "cheapest": None if replacement.cheapest is None else offer_json(replacement.cheapest),
        "newer": None if replacement.newer is None else offer_json(replacement.newer),
    }


def _next(profile: Profile, width: int | None, *, sources: bool) -> Iterator[str]:
    best = next(
        (candidate for candidate in profile.offers if candidate.obtainable and candidate.hourly_usd is not None), None
    )
    stand_in = next(
        (candidate.cheapest for candidate in reversed(profile.replacements) if candidate.cheapest is not None), None
    )
    use = best or stand_in
    yield ""
    yield "next:"
    rows = [
        (command("cloudgpu", "containers", "--latest-for", spec_name(profile.gpu.name)), "containers that run on it")
    ]
    if use is not None:
        about = "create a recipe for it" if best is not None else "create a recipe for a replacement"
        create = command("cloudgpu", "recipe", "new", "my-run", "--gpu", use.spec, "--region", str(use.region))
        rows.append((create, about))
    if not sources:
        show = command("cloudgpu", "gpus", "show", spec_name(profile.gpu.name), "--sources")
        rows.append((show, "where these values come from"))
    yield from definition_lines(rows, width)


def _block(title: str, rows: Iterator[Row], width: int | None) -> list[str]:
    return ["", title, *definition_lines(list(rows), width)]


def _table(title: str, table: Table, width: int | None) -> list[str]:
    return ["", title, *(table.lines(width) or ["  none known"])]


def _sources(profile: Profile, width: int) -> list[str]:
    """Return each source once, with the names of the values from that source."""
    lines = [
        line
        for (kind, text), names in values_by_source(profile).items()
        for line in wrap_paragraph(f"  {kind}{', '.join(dict.fromkeys(names))}: {text}", width, "      ")
    ]
    return ["", "sources", *lines] if lines else []


def _exact(figure: Decimal | None) -> str | None:
    return None if figure is None else f"{figure:f}"
