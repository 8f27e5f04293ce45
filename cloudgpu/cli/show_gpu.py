"""One GPU with everything known of it, as text and as a document."""

from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from cloudgpu.catalog.hardware import Gpu
from cloudgpu.catalog.profile import Profile
from cloudgpu.catalog.ranking import Offer
from cloudgpu.catalog.replacements import Replacement
from cloudgpu.catalog.software import FrameworkImage, TorchWheels
from cloudgpu.catalog.wishes import written
from cloudgpu.cli.figures import amount, money
from cloudgpu.cli.panel import Row
from cloudgpu.cli.show_gpus import days, offer_json, price, remark
from cloudgpu.cli.table import columns, wrapped

UNKNOWN = "unknown"
_WIDTH = 114
_RATES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")


def profile_lines(found: Profile, today: date) -> list[str]:
    """Hardware, software, containers, wheels, types, replacements and sources, one block each."""
    gpu = found.gpu
    return [
        f"{gpu.name}: {gpu.architecture}, compute capability {gpu.compute_capability} (sm_{gpu.sm})",
        *_block("hardware", _hardware(gpu)),
        *_block("software", _software(gpu)),
        *_table("last containers with native code for it", [_container(one) for one in found.containers]),
        *_table("PyTorch wheels that run on it", [_wheels(one) for one in found.wheels]),
        *_table("instance types (cheapest region of each, on demand)", [_type(one, today) for one in found.offers]),
        *_table(
            "in its place", [*_successor(found.gpu), *(row for one in found.replacements for row in _replaced(one))]
        ),
        *_sources(found),
        *_next(found),
    ]


def profile_json(found: Profile) -> dict[str, Any]:
    """The same; null is unknown, or without end where a field says so in docs/json.md."""
    gpu = found.gpu
    return {
        "gpu": gpu.name,
        "architecture": gpu.architecture,
        "compute_capability": gpu.compute_capability,
        "memories": [{"gib": amount(one.gib), "bandwidth_gb_s": one.bandwidth_gb_s} for one in gpu.memories],
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
        "containers": [{"framework": one.framework, "image": one.image} for one in found.containers],
        "wheels": [{"cuda": one.cuda, "first": one.first, "last": one.last} for one in found.wheels],
        "offers": [offer_json(one) for one in found.offers],
        "replacements": [_replacement_json(one) for one in found.replacements],
        "sources": sources(found),
    }


def sources(found: Profile) -> dict[str, str]:
    """Where each figure comes from."""
    images = dict.fromkeys(one.source for one in found.containers)
    wheels = dict.fromkeys(one.source for one in found.wheels)
    types = dict.fromkeys(one.kind.source for one in found.offers)
    parts = {"containers": images, "wheels": wheels, "prices": types}
    joined = {name: "; ".join(texts) for name, texts in parts.items() if texts}
    return {**{name: text for name, text in found.gpu.sources.items()}, **joined}


def _hardware(gpu: Gpu) -> Iterator[Row]:
    sizes = [f"{amount(one.gib)} GiB at {one.bandwidth_gb_s or UNKNOWN} GB/s" for one in gpu.memories]
    yield "memory", ", or ".join(sizes) or UNKNOWN
    have = [(name, getattr(gpu.rates, name)) for name in _RATES]
    known = [f"{name.upper()} {rate:f}" for name, rate in have if rate is not None]
    missing = [name.upper() for name, rate in have if rate is None]
    yield "rates", f"{', '.join(known)} (1e12 a second, dense)" if known else UNKNOWN
    if known and missing:
        yield "", f"no unit for, or unknown: {', '.join(missing)}"
    yield "NVLink", _nvlink(gpu)
    yield "PCIe", gpu.pcie or UNKNOWN
    yield "power", UNKNOWN if gpu.tdp_w is None else f"{gpu.tdp_w} W"
    yield "ECC", {None: UNKNOWN, True: "yes", False: "no"}[gpu.ecc]


def _nvlink(gpu: Gpu) -> str:
    if gpu.nvlink_links is None:
        return UNKNOWN
    if not gpu.nvlink_links:
        return "none"
    each = "" if gpu.nccl_link_gb_s is None else f", {gpu.nccl_link_gb_s:f} GB/s each way of each as NCCL reckons"
    return f"{gpu.nvlink_links} links{each}"


def _software(gpu: Gpu) -> Iterator[Row]:
    modules = " or ".join(gpu.modules)
    only = f"{modules} kernel modules{' only' if len(gpu.modules) == 1 else ''}"
    yield "driver", f"{window(_branch(gpu.first_driver), _branch(gpu.last_driver))}; {only}"
    yield "CUDA", window(gpu.first_cuda, None if gpu.last_cuda_major is None else f"{gpu.last_cuda_major}.x")
    yield "cuDNN", "still supported" if gpu.last_cudnn is None else f"up to {gpu.last_cudnn}"
    yield "NGC months", "none" if gpu.first_ngc is None else window(gpu.first_ngc, gpu.last_ngc)
    yield "PyTorch", _torch(gpu)
    yield "machine image", gpu.image


def _torch(gpu: Gpu) -> str:
    if gpu.first_torch_without is None:
        return "pip's default wheels run on it" if gpu.last_torch is None else f"up to {gpu.last_torch}"
    last = "" if gpu.last_torch is None else f", those of other indexes up to {gpu.last_torch}"
    return f"pip's default wheels below {gpu.first_torch_without}{last}"


def window(first: str | None, last: str | None) -> str:
    """`R384 to R580`, `R450 and later`; an unknown beginning is called so, an end that has not come is none."""
    begin = UNKNOWN if first is None else first
    if begin == last:
        return begin
    return f"{begin} and later" if last is None else f"{begin} to {last}"


def _branch(branch: int | None) -> str | None:
    return None if branch is None else f"R{branch}"


def _container(image: FrameworkImage) -> tuple[str, ...]:
    return image.framework, image.image, "tag recalled, not seen" if image.recalled else ""


def _wheels(one: TorchWheels) -> tuple[str, ...]:
    default = ""
    if one.default_from is not None:
        default = f"pip's default: {window(one.default_from, one.default_to)}"
    return one.cuda, f"PyTorch {window(one.first, one.last)}", default


def _type(offer: Offer, today: date) -> tuple[str, ...]:
    kind = offer.kind
    read = "" if offer.priced_on is None else f"read {days(offer.priced_on, today)} ago"
    size = f"{kind.gpus} x {amount(kind.gpu_memory_gib)} GiB"
    hourly = f"{UNKNOWN} price" if offer.hourly_usd is None else f"{price(offer)}/h"
    return kind.name, size, hourly, offer.region or "", read, remark(offer)


def _successor(gpu: Gpu) -> Iterator[tuple[str, ...]]:
    if gpu.replacement is not None:
        yield "", "nearest that AWS still rents", gpu.replacement, "", ""


def _replaced(one: Replacement) -> Iterator[tuple[str, ...]]:
    yield f"of {amount(one.gib)} GiB", "cheapest with as much memory", *_stand_in(one.cheapest)
    yield "", "newer, with as much memory", *_stand_in(one.newer)


def _stand_in(offer: Offer | None) -> tuple[str, str, str]:
    if offer is None or offer.usd_per_gpu_h is None:
        return "none that can be had at a known price", "", ""
    what = f"{offer.gpu.name} {amount(offer.kind.gpu_memory_gib)} GiB ({offer.gpu.architecture})"
    return what, f"{money(offer.usd_per_gpu_h)} a GPU-hour", f"{offer.kind.name} in {offer.region}"


def _replacement_json(one: Replacement) -> dict[str, Any]:
    return {
        "gib": amount(one.gib),
        "cheapest": None if one.cheapest is None else offer_json(one.cheapest),
        "newer": None if one.newer is None else offer_json(one.newer),
    }


def _next(found: Profile) -> Iterator[str]:
    best = next((one for one in found.offers if one.obtainable and one.hourly_usd is not None), None)
    stand_in = next((one.cheapest for one in reversed(found.replacements) if one.cheapest is not None), None)
    use = best or stand_in
    yield ""
    yield "next:"
    rows = [(f"cloudgpu images --latest-for {written(found.gpu.name)}", "containers that run on it")]
    if use is not None:
        about = "begin a recipe for it" if best is not None else "nobody can rent it any more: begin one for this"
        command = f"cloudgpu recipe new my-run --gpu {use.wish} --region {use.region}"
        rows.append((command, about))
    yield from columns(rows, indent="  ")


def _block(title: str, rows: Iterator[Row] | Sequence[Row]) -> list[str]:
    cells = list(rows)
    return ["", title, *columns(cells, indent="  ")] if cells else []


def _table(title: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    return ["", title, *(columns(rows, indent="  ") or ["  none known"])]


def _sources(found: Profile) -> list[str]:
    """Each sentence once, with the fields that it stands for."""
    fields: dict[str, list[str]] = {}
    for name, text in sources(found).items():
        fields.setdefault(text, []).append(name.replace("_", " "))
    lines = [line for text, names in fields.items() for line in _wrapped(f"{', '.join(names)}: {text}")]
    return ["", "sources", *lines] if lines else []


def _wrapped(text: str) -> list[str]:
    first, *more = wrapped(text, _WIDTH, "    ")
    return [f"  {first}", *(f"  {one}" for one in more)]


def _exact(figure: Decimal | None) -> str | None:
    return None if figure is None else f"{figure:f}"
