"""Render a newly created recipe, as text and as JSON."""

from decimal import Decimal
from pathlib import Path
from typing import Any

from cloudgpu.app.planning.recipe_scaffold import Scaffold
from cloudgpu.catalog.ranking import Offer
from cloudgpu.cli.terminal.number_format import amount, money
from cloudgpu.cli.terminal.table import definition_lines
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.text import command

_WHAT = {
    "recipe.yaml": "the recipe, with comments on what to change",
    "train.py": "the script that every rank runs",
    "serve.py": "the server",
}


def scaffold_lines(scaffold: Scaffold, folder: Path, width: int | None = None) -> list[str]:
    """Return the files that were written, the hardware that the recipe uses, and suggested commands."""
    offer, name = scaffold.offer, scaffold.name
    instance_type = offer.kind
    gpus = f"{instance_type.gpus} x {instance_type.gpu} {amount(instance_type.gpu_memory_gib)} GiB"
    each = " each" if scaffold.nodes > 1 else ""
    hardware = f"{scaffold.nodes} x {instance_type.name} ({gpus}{each}) in {offer.region}"
    hourly = _for_all(scaffold, offer)
    if scaffold.most_expensive.kind != instance_type:
        hourly += f" (at most {_for_all(scaffold, scaffold.most_expensive)}, on {scaffold.most_expensive.kind.name})"
    most = " on demand; spot capacity costs less" if scaffold.market == "spot" else ""
    return [
        *wrap_lines([f"{folder} is ready: {hardware}, {hourly} an hour{most}"], width),
        *definition_lines([(str(folder / file), _WHAT[file]) for file in scaffold.files], width),
        "",
        "next:",
        *definition_lines(
            [
                (command("cloudgpu", "plan", name), "what it would do and cost; changes nothing"),
                (
                    command("cloudgpu", "train", name, "--on", "rehearsal"),
                    "rehearse the run on this machine at no cost",
                ),
                (
                    command("cloudgpu", "doctor", "--on", "aws", "--region", str(offer.region)),
                    "check whether your AWS account is ready",
                ),
                (_quota(scaffold), "check whether your quota is sufficient"),
                (command("cloudgpu", "train", name, "--on", "aws"), "run it on AWS; asks before spending money"),
            ],
            width,
        ),
    ]


def _for_all(scaffold: Scaffold, offer: Offer) -> str:
    return money((offer.hourly_usd or Decimal(0)) * scaffold.nodes)


def _quota(scaffold: Scaffold) -> str:
    nodes = ["--nodes", str(scaffold.nodes)] if scaffold.nodes > 1 else []
    market = [] if scaffold.market == "on-demand" else ["--market", scaffold.market]
    where, instance_type = str(scaffold.offer.region), scaffold.offer.kind.name
    return command(
        "cloudgpu", "quota", "--on", "aws", "--region", where, "--instance-type", instance_type, *nodes, *market
    )


def scaffold_json(scaffold: Scaffold, folder: Path) -> dict[str, Any]:
    """Return the documented output of `recipe new --json`."""
    offer = scaffold.offer
    return {
        "recipe": scaffold.name,
        "path": str(folder / "recipe.yaml"),
        "files": [str(folder / file) for file in scaffold.files],
        "instance_type": offer.kind.name,
        "nodes": scaffold.nodes,
        "market": scaffold.market,
        "region": offer.region,
        "node_hourly_usd": None if offer.hourly_usd is None else f"{offer.hourly_usd:f}",
    }
