"""Generate the parts of the catalog that come from EC2: GPU instance types, their zones and their prices.

Types and zones are read from the EC2 responses that are bundled with moto. Prices in us-east-1 are read from the copy
of AWS's price list that is part of Karpenter (`zz_generated.pricing_aws.go`), prices in other regions from Vantage's
figures in a checkout of tsaol/aws-gpu (`data/*_instances.js`). Data that EC2 does not provide is defined here together
with its source.
"""

import argparse
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).resolve().parent.parent / "cloudgpu" / "catalog" / "data"
MOTO: Final = files("moto.ec2").joinpath("resources")

_GPUDIRECT: Final = ("p4d.", "p4de.", "p5.48xlarge", "p5e.", "p5en.", "p6-", "g7e.12", "g7e.24", "g7e.48")
"""Types with GPUDirect RDMA, according to aws-ofi-nccl src/platform-aws.cpp (2026-08-21)."""
_NVLINK: Final = ("p3dn.", "p4d.", "p4de.", "p5.48xlarge", "p5e.", "p5en.", "p6-")
"""Types with NVLink, according to the EC2 user guide of 2023-06-15 and the EFA cheat sheet of aws-samples."""
_MIB_PER_GIB: Final = 1024
_GIGABIT: Final = re.compile(r"(?:(\d+)x )?(\d+(?:\.\d+)?) Gigabit$")
_PRICE: Final = re.compile(r'"([a-z0-9-]+\.[a-z0-9]+)": ([0-9.]+)')
_REGION: Final = re.compile(r'^\t"([a-z0-9-]+)": \{', re.MULTILINE)
_GENERATED: Final = re.compile(r"generated at (\d{4}-\d\d-\d\d)T")
_UPDATED: Final = re.compile(r"Last updated: (\d{4}-\d\d-\d\d)")


def main() -> None:
    """Rewrite `instance_types.json`, `offers.json` and `regional_prices.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prices", type=Path, help="zz_generated.pricing_aws.go of a Karpenter checkout")
    parser.add_argument("regional", type=Path, help="folder data of a checkout of tsaol/aws-gpu")
    arguments = parser.parse_args()
    listed = arguments.prices.read_text("utf-8")
    described = sorted((_type(name, facts) for name, facts in _described().items() if _kept(facts)), key=_by_size)
    _write("instance_types.json", {"sources": _TYPE_SOURCES, "instance_types": described})
    retired = json.loads(DATA.joinpath("retired_types.json").read_text("utf-8"))["instance_types"]
    offers = _offers([row["name"] for row in (*described, *retired)], listed)
    _write("offers.json", offers)
    available = [row["name"] for row in described]
    _write("regional_prices.json", _regional_prices(arguments.regional, available, offers["regions"]))


def _described() -> dict[str, Any]:
    types: dict[str, Any] = json.loads(gzip.decompress(MOTO.joinpath("instance_types.json.gz").read_bytes()))
    return types


def _kept(facts: Mapping[str, Any]) -> bool:
    """Return True for types with whole NVIDIA GPUs and x86 processors, which the images and PyTorch wheels require."""
    gpus = facts.get("GpuInfo", {}).get("Gpus", [])
    whole = bool(gpus) and gpus[0]["Manufacturer"] == "NVIDIA" and gpus[0]["Count"] > 0
    return whole and "x86_64" in facts["ProcessorInfo"]["SupportedArchitectures"]


def _by_size(row: Mapping[str, Any]) -> tuple[str, int, int, str]:
    return row["name"].partition(".")[0], row["gpus"], row["vcpus"], row["name"]


def _type(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    gpu, network = facts["GpuInfo"]["Gpus"][0], facts["NetworkInfo"]
    disks = facts.get("InstanceStorageInfo", {}).get("Disks") or [{"Count": 0, "SizeInGB": 0}]
    size = (Decimal(gpu["MemoryInfo"]["SizeInMiB"]) / _MIB_PER_GIB).quantize(Decimal("0.01"))
    return {
        "name": name,
        "gpu": gpu["Name"],
        "gpus": gpu["Count"],
        "gpu_memory_gib": f"{size.normalize():f}",
        "vcpus": facts["VCpuInfo"]["DefaultVCpus"],
        "memory_gib": facts["MemoryInfo"]["SizeInMiB"] // _MIB_PER_GIB,
        "efa_interfaces": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        "network_cards": network["MaximumNetworkCards"],
        "gpudirect_rdma": name.startswith(_GPUDIRECT),
        "nvlink": name.startswith(_NVLINK),
        "network": network["NetworkPerformance"],
        "network_gbps": _gbps(network["NetworkPerformance"]),
        "nvme_disks": disks[0]["Count"],
        "nvme_gb": disks[0]["SizeInGB"],
        "usage_classes": sorted(facts["SupportedUsageClasses"], key=("on-demand", "spot", "capacity-block").index),
        "lifecycle": "active" if facts["CurrentGeneration"] else "previous",
    }


def _gbps(text: str) -> str | None:
    """Parse a network rate: `4x 100 Gigabit` is 400, `Up to 25 Gigabit` is 25."""
    match = _GIGABIT.search(text)
    return str(int(match[1] or 1) * Decimal(match[2])) if match else None


def _offers(names: list[str], listed: str) -> dict[str, Any]:
    zones, prices = _zones(), dict(_prices(listed))
    regions = sorted(zones)
    day = _GENERATED.search(listed)
    if day is None:
        message = "the price list has no date"
        raise SystemExit(message)
    return {
        "sources": _OFFER_SOURCES,
        "priced_on": day[1],
        "regions": regions,
        "offers": [
            {
                "name": name,
                "zones": {region: "".join(zones[region][name]) for region in regions if name in zones[region]},
                "on_demand_usd": {region: prices[region][name] for region in regions if name in prices.get(region, {})},
            }
            for name in names
        ],
    }


def _zones() -> dict[str, dict[str, list[str]]]:
    """Return the zone letters by region and type."""
    zones: dict[str, dict[str, list[str]]] = {}
    for path in sorted(MOTO.joinpath("instance_type_offerings", "availability-zone").iterdir(), key=str):
        region = path.name.partition(".")[0]
        for row in json.loads(gzip.decompress(path.read_bytes())):
            letter = row["Location"].removeprefix(region)
            if len(letter) == 1:  # longer names are local zones
                zones.setdefault(region, {}).setdefault(row["InstanceType"], []).append(letter)
    return {region: {name: sorted(letters) for name, letters in rows.items()} for region, rows in zones.items()}


def _prices(listed: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each region with the hourly price of its types in USD, without trailing zeros."""
    starts = list(_REGION.finditer(listed))
    for at, start in enumerate(starts):
        end = starts[at + 1].start() if at + 1 < len(starts) else len(listed)
        rows = {name: f"{Decimal(usd).normalize():f}" for name, usd in _PRICE.findall(listed[start.end() : end])}
        yield start[1], {name: usd for name, usd in rows.items() if Decimal(usd) > 0}


def _regional_prices(folder: Path, names: list[str], regions: list[str]) -> dict[str, Any]:
    """Return the hourly prices of each type by region, and the oldest date on which a file with prices was written."""
    days: set[str] = set()
    prices: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*_instances.js")):
        text = path.read_text("utf-8")
        rows = json.loads(text[text.index("[") : text.rindex("]") + 1], parse_float=Decimal)
        for row in (row for row in rows if row["name"] in names):
            listed = {region: row["pricing"].get(region, {}).get("onDemand") for region in regions}
            prices.setdefault(row["name"], {}).update(
                {region: f"{Decimal(usd).normalize():f}" for region, usd in listed.items() if usd}
            )
            days.update(_UPDATED.findall(text))
    ordered = {name: dict(sorted(prices[name].items())) for name in names if prices.get(name)}
    return {"source": _REGIONAL_SOURCE, "read_on": min(days), "on_demand_usd": ordered}


def _write(name: str, content: Mapping[str, Any]) -> None:
    """Write a file with one line per list row, so that a diff shows the changed rows."""
    parts = [f"  {json.dumps(key)}: {_laid_out(value)}" for key, value in content.items()]
    DATA.joinpath(name).write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")


def _laid_out(value: object) -> str:
    if isinstance(value, dict):
        rows = (f"    {json.dumps(key)}: {json.dumps(row)}" for key, row in value.items())
        return "{\n" + ",\n".join(rows) + "\n  }"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in value) + "\n  ]"
    return json.dumps(value)


_EC2: Final = "EC2 DescribeInstanceTypes as carried by moto 5.2.1"
_TYPE_SOURCES: Final = {
    "hardware": _EC2,
    "lifecycle": f"{_EC2}: whether it is of the current generation",
    "network": _EC2,
    "nvme": _EC2,
    "usage_classes": _EC2,
    "gpudirect_rdma": "aws-ofi-nccl src/platform-aws.cpp (2026-08-21)",
    "nvlink": "EC2 user guide of 2023-06-15 and the EFA cheat sheet of aws-samples",
}
_OFFER_SOURCES: Final = {
    "zones": "EC2 DescribeInstanceTypeOfferings as carried by moto 5.2.1; zone names differ from account to account",
    "on_demand_usd": "AWS price list as carried by Karpenter (zz_generated.pricing_aws.go)",
}
_REGIONAL_SOURCE: Final = "outside us-east-1: AWS price list as carried by Vantage (tsaol aws-gpu, data/*_instances.js)"


if __name__ == "__main__":
    main()
