"""`gpus` from its options to its output, which is compared with golden files."""

import json
import re
import shlex
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
import typer

from cloudgpu.app.planning.catalog_search import GpuQuery, search_gpus
from cloudgpu.catalog.gpu_spec import parse_gib
from cloudgpu.catalog.snapshot import CatalogSnapshot, Reading, RegionReadings
from cloudgpu.cli.main import app, main
from cloudgpu.cli.render.gpus import gpu_search_json, gpu_search_lines, offer_json
from cloudgpu.errors import UsageError
from cloudgpu.state.catalog_snapshots import CatalogSnapshots
from tests.screens import screens

TODAY = date(2026, 11, 21)
COMMAND = typer.main.get_command(app)


def screen(catalog, **options) -> str:
    found = search_gpus(GpuQuery(**options), catalog, "us-east-1")
    return "\n".join(gpu_search_lines(found, TODAY)) + "\n"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("eight_with_32gb", {"count": 8, "min_memory": "32GB"}),
        ("spot", {"market": "spot", "sort": "usd-per-pflop-h", "region": "us-east-1", "count": 8}),
        ("nothing", {"arch": "volta", "count": 1, "min_memory": "24GiB"}),
    ],
)
def test_gpus_output_matches_golden_file(catalog, golden, name, options):
    assert screen(catalog, **options) == golden(f"gpus_{name}.txt")


def test_gpus_screens_match_golden_file(catalog, golden):
    found = search_gpus(GpuQuery(count=8, min_memory="32GB", sort="usd-per-tb-s"), catalog, "us-east-1")
    assert screens(lambda width: gpu_search_lines(found, TODAY, width)) == golden("screens_gpus.txt")


MORE = "to show all: a wider terminal, a pipe or --json"


@pytest.mark.parametrize(
    ("width", "sort", "left_out"),
    [
        (None, "memory", None),
        (200, "memory", None),
        (110, "usd-per-hour", None),
        (100, "usd-per-hour", "in a block"),
        (80, "memory", "in a block, per PFLOP-h, per TB/s-h"),
        (80, "fp16", "GiB, in a block, per TB/s-h, read"),
        (20, "fp16", "GiB, TB/s, in a block, per PFLOP-h, per TB/s-h, read"),
    ],
)
def test_narrow_terminal_hides_the_least_important_columns(catalog, width, sort, left_out):
    found = search_gpus(GpuQuery(count=8, min_memory="32GB", sort=sort), catalog, "us-east-1")
    lines = gpu_search_lines(found, TODAY, width)
    end = lines.index("")
    note = [at for at, line in enumerate(lines[:end]) if line.startswith("hidden columns: ")]
    hidden = " ".join(word for at in note for word in " ".join(lines[at:end]).split())
    assert hidden == ("" if left_out is None else f"hidden columns: {left_out}; {MORE}")
    if width and width > 20:
        assert [line for line in lines if len(line) > width and not line.startswith("  cloudgpu ")] == []


def test_all_option_shows_why_types_are_unavailable(catalog):
    shown = screen(catalog, everything=True, arch="VOLTA")
    assert re.findall(r"^(\S+) .*  (previous generation|retired 2025-12-20|your own hosts)$", shown, re.MULTILINE) == [
        ("p3dn.24xlarge", "previous generation"),
        ("p3.16xlarge", "retired 2025-12-20"),
        ("dgx-1", "your own hosts"),
    ]
    assert "--all" not in shown


def test_capacity_block_only_type_is_labeled(catalog):
    line = next(line for line in screen(catalog).splitlines() if line.startswith("p5e"))
    assert line.endswith("us-east-2  -      only spot and capacity-block")
    assert "  $39.80  " in line


def test_empty_result_names_the_restricting_options(catalog):
    assert screen(catalog, arch="kepler") == (
        "no instance type matches all of these options\n  without --arch kepler: 8 types\n  with --all: 1 type\n"
    )


def test_near_misses_in_memory_are_shown(catalog):
    shown = screen(catalog, min_memory="24GiB", count=8)
    assert "with slightly less memory than requested:\n  g5.48xlarge (8 x A10G 22.35 GiB), $16.29 an hour\n" in shown


def test_memory_without_unit_is_in_gb_as_help_says(catalog, capsys):
    """GPUs are sold by GB: with GiB, `--min-memory 32` would exclude the V100 of 32 GB."""
    found = [search_gpus(GpuQuery(count=8, min_memory=text), catalog, "us-east-1").found for text in ("32", "32GB")]
    assert found[0] == found[1]
    assert main(["gpus", "--help"]) == 0
    assert "Default unit: GB." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_memory": "24"}, ""),
        ({"min_memory": "24 gib"}, ""),
        (
            {"min_memory": "much"},
            "--min-memory much: expected memory such as 32GB or 24GiB; a number without a unit is in GB",
        ),
        ({"min_memory": "0GB"}, "--min-memory 0GB: expected memory such as 32GB"),
        ({"min_total_memory": "-1GB"}, "--min-total-memory -1GB: expected"),
        ({"arch": "vlta"}, '--arch vlta: no GPU in the catalog has this architecture; did you mean "volta"?'),
        ({"region": "us-east-9"}, "--region us-east-9: not a region in the catalog; did you mean"),
    ],
)
def test_gpus_options_are_validated(catalog, options, message):
    if not message:
        assert search_gpus(GpuQuery(**options), catalog, "us-east-1").found.offers
        return
    with pytest.raises(UsageError, match=re.escape(message)) as refused:
        search_gpus(GpuQuery(**options), catalog, "us-east-1")
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [("24GB", "22.35"), ("24GiB", "24.00"), ("32", "29.80"), ("1.5tib", "1536.00"), ("0.08TB", "74.50")],
)
def test_memory_sizes_are_parsed_with_any_unit(text, expected):
    assert str(parse_gib(text)) == expected


def test_gpus_json_has_exact_figures(catalog):
    document = gpu_search_json(search_gpus(GpuQuery(count=8, min_memory="32GB"), catalog, "us-east-1"))
    assert (document["market"], document["sort"], document["loosened"]) == ("on-demand", "usd-per-hour", [])
    assert document["offers"][0] == {
        "instance_type": "p4d.24xlarge",
        "provider": "aws",
        "gpu": "A100",
        "gpus": 8,
        "wish": "A100-40GB:8",
        "gpu_memory_gib": "40",
        "gpu_memory_total_gib": "320",
        "bandwidth_tb_s": "12.44",
        "fp16_pflop_s": "2.496",
        "region": "us-east-1",
        "hourly_usd": "21.957642",
        "lowest_hourly_usd": None,
        "capacity_block_hourly_usd": None,
        "usd_per_pflop_h": "8.7971",
        "usd_per_tb_s": "1.7651",
        "priced_on": "2026-07-20",
        "source": "made by hand",
        "lifecycle": "active",
        "retired_on": None,
        "usage_classes": ["on-demand", "spot"],
    }
    assert json.loads(json.dumps(document)) == document


def next_commands(shown: str) -> list[list[str]]:
    lines = shown.partition("\nnext:\n")[2].splitlines()
    return [shlex.split(re.split(r"\s{2,}", line.strip())[0]) for line in lines]


@pytest.mark.parametrize(
    "options",
    [{}, {"market": "spot"}, {"region": "us-west-2"}, {"region": "eu-west-1", "market": "spot"}, {"arch": "blackwell"}],
)
def test_suggested_next_commands_have_valid_options(catalog, options):
    commands = next_commands(screen(catalog, **options))
    assert len(commands) == 3
    for program, *argv in commands:
        command = COMMAND
        while hasattr(command, "commands"):
            command = command.commands[argv.pop(0)]
        assert program == "cloudgpu"
        assert {word for word in argv if word.startswith("--")} <= {
            name for param in command.params for name in param.opts
        }


def test_suggested_commands_name_region_other_than_home_region(catalog):
    west = next_commands(screen(catalog, region="us-west-2", market="spot", arch="volta"))
    assert west == []  # no spot price is known there
    west = next_commands(screen(catalog, region="us-west-2", arch="volta"))
    assert west[1][-2:] == ["--region", "us-west-2"]
    assert west[2][-1] == "resources.regions=us-west-2"
    spot = next_commands(screen(catalog, region="us-east-1", market="spot", arch="volta"))
    assert spot[1][-1] == "--spot"
    assert spot[2][3:] == ["--set", "resources.gpu=V100-32GB:8", "--set", "resources.market=spot"]


@pytest.mark.usefixtures("home")
def test_gpus_command_works_with_shipped_catalog(capsys):
    assert main(["gpus", "--count", "8", "--min-memory", "32GB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {offer["instance_type"]: offer for offer in document["offers"]}
    assert {"p3dn.24xlarge", "p4d.24xlarge"} <= set(found)
    assert all(offer["gpus"] == 8 and float(offer["gpu_memory_gib"]) >= 29.8 for offer in found.values())
    assert found["p3dn.24xlarge"]["wish"] == "V100-32GB:8"
    assert main(["gpus", "--arch", "volta"]) == 0
    assert "cloudgpu recipe new my-run --gpu V100-32GB:8" in capsys.readouterr().out
    assert main(["gpus", "--arch", "volta", "--all", "--json"]) == 0
    assert "p3.16xlarge" in {offer["instance_type"] for offer in json.loads(capsys.readouterr().out)["offers"]}
    assert main(["gpus", "--arch", "nope", "--json"]) == 2
    assert "nope" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_gpus_command_shows_prices_from_the_snapshot(home, capsys):
    at, name = datetime(2026, 11, 20, 12, tzinfo=UTC), "p3dn.24xlarge"
    listed = Reading(at, "Pricing GetProducts", {name: Decimal("9.5")})
    seen = Reading(at, "DescribeSpotPriceHistory", {name: (Decimal(3), Decimal(4))})
    snapshot = CatalogSnapshot("rehearsal", "1", "", {"us-east-1": RegionReadings(on_demand=listed, spot=seen)})
    CatalogSnapshots(home.ensure(), "rehearsal").add(lambda _: (snapshot, "", []), at=at, regions=["us-east-1"])

    def shown(*argv: str) -> tuple[str, str]:
        assert main(["gpus", "--arch", "volta", "--json", *argv]) == 0
        (offer,) = json.loads(capsys.readouterr().out)["offers"]
        return offer["hourly_usd"], offer["priced_on"]

    assert shown() == ("9.5", "2026-11-20")
    assert shown("--spot") == ("4", "2026-11-20")
    assert shown("--on", "aws") == ("31.212", "2026-07-20")


def test_gpus_options_before_show_are_rejected(capsys):
    assert main(["gpus", "--count", "8", "show", "V100"]) == 2
    assert "--count is an option of `gpus`, not of `gpus show`" in capsys.readouterr().err


def test_gpu_name_without_show_gets_a_hint(capsys):
    assert main(["gpus", "V100"]) == 2
    assert "hint: cloudgpu gpus show V100" in capsys.readouterr().err


def test_offer_without_price_has_null_fields(catalog):
    (only,) = [offer for offer in search_gpus(GpuQuery(region="us-east-2"), catalog, "us-east-1").found.offers]
    document = offer_json(only)
    assert document["capacity_block_hourly_usd"] == "39.799"
    assert [document[name] for name in ("hourly_usd", "usd_per_pflop_h", "usd_per_tb_s", "priced_on")] == [None] * 4


def test_help_lists_beginner_commands_first(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    listed = re.findall(r"^  ([a-z-]+)  ", shown.partition("Commands:")[2], re.MULTILINE)
    assert listed[:4] == ["gpus", "containers", "recipe", "plan"]
    assert listed == [name for name in COMMAND.commands if name != "images"]  # the old name of `containers`
    steps = re.findall(r"^    cloudgpu (\S+)", shown, re.MULTILINE)
    assert steps == ["train", "gpus", "recipe", "plan", "train"]


def names_of(document: object) -> set[str]:
    """Return the names of all fields of a document, at any depth."""
    if isinstance(document, list):
        return {name for item in document for name in names_of(item)}
    if isinstance(document, dict):
        return {name for item in document.values() for name in names_of(item)} | set(document)
    return set()


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "argv", [["gpus", "--min-memory", "24GiB"], ["gpus", "--count", "3"], ["gpus", "show", "V100"], ["images"]]
)
def test_every_json_field_is_documented(argv, capsys):
    assert main([*argv, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for free in ("sources", "rates_tflop_s"):  # keyed by names of other fields
        document.pop(free, None)
    page = (Path(__file__).parents[4] / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    assert [name for name in sorted(names_of(document)) if f"`{name}`" not in page] == []


# Modules that typer imports are out of our control, but these are not needed to answer without a recipe.
NOT_LOADED = ("asyncssh", "boto3", "botocore", "moto", "paramiko", "pulumi", "rich", "ruamel", "sqlalchemy", "yaml")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("argv", [["gpus"], ["gpus", "show", "V100"], ["images", "--gpu", "V100"]])
def test_gpu_commands_load_no_heavy_modules(argv):
    program = f"""
import sys
from cloudgpu.cli.main import main
code = main({argv!r})
packages = [name for name in sys.modules if name.startswith(("cloudgpu.plan", "cloudgpu.rehearsal", "cloudgpu.aws"))]
heavy = set(sys.modules) & {{*{NOT_LOADED!r}, "cloudgpu.recipe.schema"}}
print("LOADED", *sorted(heavy), *sorted(packages), file=sys.stderr)
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].split() == ["LOADED"]
