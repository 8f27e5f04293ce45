"""The comparison of GPUs as text and as JSON."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

from cloudgpu.app.planning.catalog_search import GpuSearchResult
from cloudgpu.catalog.gpu_spec import spec_name
from cloudgpu.catalog.ranking import Offer
from cloudgpu.cli.terminal.number_format import amount, money
from cloudgpu.cli.terminal.table import Column, Table, definition_lines
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.text import command, plural

_BLOCK = "in a block"
_COLUMNS = (
    Column("type"),
    Column("GPU", priority=3, narrow="wrap", least=12),
    Column("GPUs", right=True, priority=1),
    Column("GiB each", right=True, priority=1),
    Column("GiB", right=True, priority=9, narrow="hide"),
    Column("TB/s", right=True, priority=5, narrow="hide"),
    Column("PFLOP/s", right=True, priority=4, narrow="hide"),
    Column("per hour", right=True, priority=1),
    Column(_BLOCK, right=True, priority=10, narrow="hide"),
    Column("per PFLOP-h", right=True, priority=6, narrow="hide"),
    Column("per TB/s-h", right=True, priority=7, narrow="hide"),
    Column("region", priority=1),
    Column("read", priority=8, narrow="hide"),
    Column(priority=11),
)
_SORTED = {
    "memory": "GiB",
    "usd-per-tb-s": "per TB/s-h",
    "usd-per-pflop-h": "per PFLOP-h",
    "bandwidth": "TB/s",
    "fp16": "PFLOP/s",
}
"""The column of a sort order, which is never hidden."""
_ORDERS = {
    "usd-per-hour": "the cheapest first",
    "memory": "the most memory first",
    "bandwidth": "the most memory bandwidth first",
    "fp16": "the highest FP16 rate first",
    "usd-per-pflop-h": "the cheapest FP16 compute first",
    "usd-per-tb-s": "the cheapest memory bandwidth first",
}
UNKNOWN = "-"
OLD_DAYS = 30


def gpu_search_lines(answer: GpuSearchResult, today: date, width: int | None = None) -> list[str]:
    """Return one line per type, followed by notes, near matches and suggested commands."""
    if not answer.found.offers:
        return wrap_lines([*_nothing(answer), *_nearly(answer)], width)
    return [
        *_table(answer, today).lines(width),
        "",
        *wrap_lines([*_legend(answer), *_old(answer, today), *_nearly(answer)], width),
        *_next(answer, width),
    ]


def gpu_search_json(answer: GpuSearchResult) -> dict[str, Any]:
    """Return the search result as JSON."""
    return {
        "market": answer.asked.market,
        "sort": answer.asked.sort,
        "offers": [offer_json(offer) for offer in answer.found.offers],
        "nearly": [offer_json(offer) for offer in answer.found.nearly],
        "loosened": [{"change": option.change, "types": option.types} for option in answer.relaxations],
    }


def offer_json(offer: Offer) -> dict[str, Any]:
    """Return an instance type with its price as JSON; null means unknown."""
    instance_type = offer.kind
    return {
        "instance_type": instance_type.name,
        "provider": instance_type.provider,
        "gpu": instance_type.gpu,
        "gpus": instance_type.gpus,
        "wish": offer.spec,
        "gpu_memory_gib": amount(instance_type.gpu_memory_gib),
        "gpu_memory_total_gib": amount(instance_type.gpu_memory_total_gib),
        "bandwidth_tb_s": _text(offer.bandwidth_tb_s),
        "fp16_pflop_s": _text(offer.fp16_pflop_s),
        "region": offer.region,
        "hourly_usd": _text(offer.hourly_usd),
        "lowest_hourly_usd": _text(offer.lowest_usd),
        "capacity_block_hourly_usd": _text(offer.block_usd),
        "usd_per_pflop_h": _text(offer.usd_per_pflop_h, places=4),
        "usd_per_tb_s": _text(offer.usd_per_tb_s, places=4),
        "priced_on": None if offer.priced_on is None else offer.priced_on.isoformat(),
        "source": instance_type.source,
        "lifecycle": instance_type.lifecycle,
        "retired_on": None if instance_type.retired_on is None else instance_type.retired_on.isoformat(),
        "usage_classes": list(instance_type.usage_classes),
    }


def offer_cells(offer: Offer, today: date) -> tuple[str, ...]:
    """Return the table cells for one instance type."""
    instance_type = offer.kind
    return (
        instance_type.name,
        instance_type.gpu,
        str(instance_type.gpus),
        amount(instance_type.gpu_memory_gib),
        amount(instance_type.gpu_memory_total_gib),
        format_optional(offer.bandwidth_tb_s, lambda figure: f"{figure:.2f}"),
        format_optional(offer.fp16_pflop_s, lambda figure: f"{figure:.3f}"),
        format_price(offer),
        format_optional(offer.block_usd, money),
        format_optional(offer.usd_per_pflop_h, money),
        format_optional(offer.usd_per_tb_s, money),
        offer.region or UNKNOWN,
        format_price_age(offer.priced_on, today),
        availability_remark(offer),
    )


def format_price(offer: Offer) -> str:
    """Format a price as `$31.21`, a spot price as the range observed, or an unknown price as `-`."""
    if offer.hourly_usd is None:
        return UNKNOWN
    if offer.lowest_usd is None or offer.lowest_usd == offer.hourly_usd:
        return money(offer.hourly_usd)
    return f"{money(offer.lowest_usd)} to {money(offer.hourly_usd)}"


def format_price_age(read_on: date | None, today: date) -> str:
    """Format the age of a price in days as `124 d`, or `-` if unknown."""
    return UNKNOWN if read_on is None else f"{max(0, (today - read_on).days)} d"


def availability_remark(offer: Offer) -> str:
    """Return a remark on a type's availability or provider, such as `retired` or `only spot`; may be empty."""
    instance_type = offer.kind
    if instance_type.retired:
        return "retired" if instance_type.retired_on is None else f"retired {instance_type.retired_on.isoformat()}"
    if instance_type.provider != "aws":
        return {"own": "your own hosts", "alibaba": "Alibaba Cloud"}[instance_type.provider]
    if "on-demand" not in instance_type.usage_classes:
        return f"only {' and '.join(instance_type.usage_classes)}"
    return "previous generation" if instance_type.lifecycle == "previous" else ""


def format_optional(figure: Decimal | None, text: Callable[[Decimal], str]) -> str:
    """Format a number that may be unknown."""
    return UNKNOWN if figure is None else text(figure)


def _table(answer: GpuSearchResult, today: date) -> Table:
    offers, asked = answer.found.offers, answer.asked
    blocks = asked.market == "on-demand" and any(offer.block_usd is not None for offer in offers)
    shown = [place for place, column in enumerate(_COLUMNS) if blocks or column.heading != _BLOCK]
    columns = [_COLUMNS[place] for place in shown]
    needed = _SORTED.get(asked.sort)
    columns = [replace(column, priority=0, narrow="fold") if column.heading == needed else column for column in columns]
    cells = [offer_cells(offer, today) for offer in offers]
    return Table(columns, [[row[place] for place in shown] for row in cells])


def _legend(answer: GpuSearchResult) -> Iterator[str]:
    offers, asked = answer.found.offers, answer.asked
    where = f"in {asked.region}" if asked.region else "in each type's cheapest region"
    yield f"{plural(len(offers), 'instance type')}, {_ORDERS[asked.sort]}; {asked.market} prices {where}"
    if asked.market == "spot":
        yield "spot prices: the lowest and highest price observed; calculations use the highest"
    yield "GiB, TB/s (memory bandwidth) and PFLOP/s (FP16): nominal values of the whole instance"
    yield "per PFLOP-h, per TB/s-h: USD per hour for each PFLOP/s or TB/s; read: age of the price; -: unknown or none"
    if any(offer.block_usd is not None for offer in offers) and asked.market == "on-demand":
        yield "in a block: USD per hour in a Capacity Block, reserved in advance for several days in the same region"
    if not asked.everything:
        yield "to include retired types and machines that are not from AWS: --all"


def _old(answer: GpuSearchResult, today: date) -> Iterator[str]:
    """Yield a note if a price is older than `OLD_DAYS` days, in which case a plan would also report the age."""
    ages = [(today - offer.priced_on).days for offer in answer.found.offers if offer.priced_on is not None]
    if max(ages, default=0) > OLD_DAYS:
        old = plural(max(ages), "day")
        yield f"prices are up to {old} old; to refresh your region's prices: cloudgpu catalog refresh"


def _nothing(answer: GpuSearchResult) -> Iterator[str]:
    yield "no instance type matches all of these options"
    for option in answer.relaxations:
        yield f"  {option.change}: {plural(option.types, 'type')}"


def _nearly(answer: GpuSearchResult) -> Iterator[str]:
    if answer.found.nearly:
        yield ""
        yield "with slightly less memory than requested:"
        for offer in answer.found.nearly:
            instance_type = offer.kind
            each = f"{instance_type.gpus} x {instance_type.gpu} {amount(instance_type.gpu_memory_gib)} GiB"
            yield f"  {instance_type.name} ({each}), {format_price(offer)} an hour"


def _next(answer: GpuSearchResult, width: int | None) -> Iterator[str]:
    """Yield suggested commands for the first offer that AWS still sells and whose hourly price is known."""
    best = next((offer for offer in answer.found.offers if offer.obtainable and offer.hourly_usd is not None), None)
    if best is None:
        return
    elsewhere = best.region not in (None, answer.home_region)
    region = ["--region", str(best.region)] if elsewhere else []
    sets = [f"resources.gpu={best.spec}"]
    sets += [f"resources.regions={best.region}"] if elsewhere else []
    spot = ["--spot"] if answer.asked.market == "spot" else []
    sets += ["resources.market=spot"] if spot else []
    set_all = [word for assignment in sets for word in ("--set", assignment)]
    rows: Sequence[tuple[str, str]] = [
        (command("cloudgpu", "gpus", "show", spec_name(best.gpu.name)), "everything known about this GPU"),
        (command("cloudgpu", "recipe", "new", "my-run", "--gpu", best.spec, *region, *spot), "create a recipe for it"),
        (command("cloudgpu", "plan", "RECIPE", *set_all), "what an existing recipe would do and cost on it"),
    ]
    yield ""
    yield "next:"
    yield from definition_lines(rows, width)


def _text(figure: Decimal | None, *, places: int | None = None) -> str | None:
    if figure is None:
        return None
    return f"{figure:f}" if places is None else f"{figure:.{places}f}"
