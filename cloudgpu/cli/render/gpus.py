"""The comparison of GPUs as text and as JSON."""

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from cloudgpu.app.planning.gpu_search import GpuSearchResult
from cloudgpu.catalog.gpu_spec import spec_name
from cloudgpu.catalog.ranking import Offer
from cloudgpu.cli.terminal.number_format import amount, money, plural
from cloudgpu.cli.terminal.table import columns
from cloudgpu.text import command

_BLOCK = "in a block"
_HEADINGS = (
    "type",
    "GPU",
    "GPUs",
    "GiB each",
    "GiB",
    "TB/s",
    "PFLOP/s",
    "an hour",
    _BLOCK,
    "a PFLOP-h",
    "a TB/s-h",
    "region",
    "read",
    "",
)
_RIGHT = frozenset(range(2, 11))
_LESS = {
    _BLOCK: "",
    "GiB": "memory",
    "read": "",
    "a TB/s-h": "usd-per-tb-s",
    "a PFLOP-h": "usd-per-pflop-h",
    "TB/s": "bandwidth",
    "PFLOP/s": "fp16",
}
"""Columns that a narrow terminal does without, the first one first, and the order in which each is needed."""
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


def answer_lines(answer: GpuSearchResult, today: date, width: int | None = None) -> list[str]:
    """Return one line per type, then notes, near misses and what to type next.

    Columns that do not fit the terminal's `width` are left out and listed.
    """
    if not answer.found.offers:
        return [*_nothing(answer), *_nearly(answer)]
    table, left_out = _table(answer, today, width)
    return [
        *table,
        "",
        *([f"no room for: {', '.join(left_out)}"] if left_out else []),
        *_legend(answer),
        *_old(answer, today),
        *_nearly(answer),
        *_next(answer),
    ]


def answer_json(answer: GpuSearchResult) -> dict[str, Any]:
    """Return the same with exact figures as JSON."""
    return {
        "market": answer.asked.market,
        "sort": answer.asked.sort,
        "offers": [offer_json(offer) for offer in answer.found.offers],
        "nearly": [offer_json(offer) for offer in answer.found.nearly],
        "loosened": [{"change": option.change, "types": option.types} for option in answer.loosened],
    }


def offer_json(offer: Offer) -> dict[str, Any]:
    """Return an instance type at its price as JSON; null is unknown."""
    kind = offer.kind
    return {
        "instance_type": kind.name,
        "provider": kind.provider,
        "gpu": kind.gpu,
        "gpus": kind.gpus,
        "wish": offer.spec,
        "gpu_memory_gib": amount(kind.gpu_memory_gib),
        "gpu_memory_total_gib": amount(kind.gpu_memory_total_gib),
        "bandwidth_tb_s": _text(offer.bandwidth_tb_s),
        "fp16_pflop_s": _text(offer.fp16_pflop_s),
        "region": offer.region,
        "hourly_usd": _text(offer.hourly_usd),
        "lowest_hourly_usd": _text(offer.lowest_usd),
        "capacity_block_hourly_usd": _text(offer.block_usd),
        "usd_per_pflop_h": _text(offer.usd_per_pflop_h, places=4),
        "usd_per_tb_s": _text(offer.usd_per_tb_s, places=4),
        "priced_on": None if offer.priced_on is None else offer.priced_on.isoformat(),
        "source": kind.source,
        "lifecycle": kind.lifecycle,
        "retired_on": None if kind.retired_on is None else kind.retired_on.isoformat(),
        "usage_classes": list(kind.usage_classes),
    }


def row(offer: Offer, today: date) -> tuple[str, ...]:
    """Return the cells of one type."""
    kind = offer.kind
    return (
        kind.name,
        kind.gpu,
        str(kind.gpus),
        amount(kind.gpu_memory_gib),
        amount(kind.gpu_memory_total_gib),
        shown(offer.bandwidth_tb_s, lambda figure: f"{figure:.2f}"),
        shown(offer.fp16_pflop_s, lambda figure: f"{figure:.3f}"),
        price(offer),
        shown(offer.block_usd, money),
        shown(offer.usd_per_pflop_h, money),
        shown(offer.usd_per_tb_s, money),
        offer.region or UNKNOWN,
        days(offer.priced_on, today),
        remark(offer),
    )


def price(offer: Offer) -> str:
    """Format a price as `$31.21`; for spot as the range observed."""
    if offer.hourly_usd is None:
        return UNKNOWN
    if offer.lowest_usd is None or offer.lowest_usd == offer.hourly_usd:
        return money(offer.hourly_usd)
    return f"{money(offer.lowest_usd)} to {money(offer.hourly_usd)}"


def days(read_on: date | None, today: date) -> str:
    """Format the age of a price as `124 d`."""
    return UNKNOWN if read_on is None else f"{max(0, (today - read_on).days)} d"


def remark(offer: Offer) -> str:
    """Return a remark on availability: being retired, retired, in another region, or not sold by the hour."""
    kind = offer.kind
    if kind.retired:
        return "retired" if kind.retired_on is None else f"retired {kind.retired_on.isoformat()}"
    if kind.provider != "aws":
        return {"own": "hosts of your own", "alibaba": "Alibaba Cloud"}[kind.provider]
    if "on-demand" not in kind.usage_classes:
        return f"only {' and '.join(kind.usage_classes)}"
    return "previous generation" if kind.lifecycle == "previous" else ""


def shown(figure: Decimal | None, text: Callable[[Decimal], str]) -> str:
    """Format a figure that may be unknown."""
    return UNKNOWN if figure is None else text(figure)


def _table(answer: GpuSearchResult, today: date, width: int | None) -> tuple[list[str], list[str]]:
    """Return the table, and the headings of columns that did not fit. The sort column always stays."""
    rows = [row(offer, today) for offer in answer.found.offers]
    blocks = answer.asked.market == "on-demand" and any(offer.block_usd is not None for offer in answer.found.offers)
    headings = [heading for heading in _HEADINGS if blocks or heading != _BLOCK]
    may_go = [heading for heading, order in _LESS.items() if order != answer.asked.sort and heading in headings]
    left_out: list[str] = []
    while True:
        positions = [_HEADINGS.index(heading) for heading in headings if heading not in left_out]
        cells = [tuple(cells[place] for place in positions) for cells in (_HEADINGS, *rows)]
        lines = columns(cells, right={at for at, place in enumerate(positions) if place in _RIGHT})
        if width is None or len(left_out) == len(may_go) or max(map(len, lines)) <= width:
            return lines, left_out
        left_out.append(may_go[len(left_out)])


def _legend(answer: GpuSearchResult) -> Iterator[str]:
    offers, asked = answer.found.offers, answer.asked
    where = f"in {asked.region}" if asked.region else "in each type's cheapest region"
    yield f"{plural(len(offers), 'instance type')}, {_ORDERS[asked.sort]}; {asked.market} prices {where}"
    if asked.market == "spot":
        yield "spot prices are the lowest and the highest seen; what is reckoned with them takes the highest"
    yield "GiB, TB/s (memory bandwidth) and PFLOP/s (FP16) are of the whole instance, peaks on paper;"
    yield "a PFLOP-h, a TB/s-h: USD for that much for an hour; read: the price's age; -: unknown, or there is none"
    if any(offer.block_usd is not None for offer in offers) and asked.market == "on-demand":
        yield "in a block: an hour in a Capacity Block of the same region, bought in advance for some days"
    if not asked.everything:
        yield "retired types and machines that AWS does not have: --all"


def _old(answer: GpuSearchResult, today: date) -> Iterator[str]:
    """Yield a note for prices that a plan would also report as old."""
    ages = [(today - offer.priced_on).days for offer in answer.found.offers if offer.priced_on is not None]
    if max(ages, default=0) > OLD_DAYS:
        yield f"prices are up to {max(ages)} days old: cloudgpu catalog refresh reads those of your region anew"


def _nothing(answer: GpuSearchResult) -> Iterator[str]:
    yield "no instance type fits all of this"
    for option in answer.loosened:
        yield f"  {option.change}: {plural(option.types, 'type')}"


def _nearly(answer: GpuSearchResult) -> Iterator[str]:
    if answer.found.nearly:
        yield ""
        yield "with a little less memory than asked for:"
        for offer in answer.found.nearly:
            kind = offer.kind
            each = f"{kind.gpus} x {kind.gpu} {amount(kind.gpu_memory_gib)} GiB"
            yield f"  {kind.name} ({each}), {price(offer)} an hour"


def _next(answer: GpuSearchResult) -> Iterator[str]:
    """Yield the command for the first offer that is sold by the hour."""
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
        (command("cloudgpu", "gpus", "show", spec_name(best.gpu.name)), "everything known of this GPU"),
        (command("cloudgpu", "recipe", "new", "my-run", "--gpu", best.spec, *region, *spot), "begin a recipe for it"),
        (command("cloudgpu", "plan", "RECIPE", *set_all), "what a recipe that you have would do and cost on it"),
    ]
    yield ""
    yield "next:"
    yield from columns(rows, indent="  ")


def _text(figure: Decimal | None, *, places: int | None = None) -> str | None:
    if figure is None:
        return None
    return f"{figure:f}" if places is None else f"{figure:.{places}f}"
