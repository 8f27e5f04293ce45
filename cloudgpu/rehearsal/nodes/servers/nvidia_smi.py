"""Output of `nvidia-smi` for simulated GPUs. Every GPU name contains `(simulated)`."""

from collections.abc import Callable, Sequence

from cloudgpu.rehearsal.nodes.values import NodeSpec

DRIVER = "580.126.09"
_CUDA = "13.0"

_FIELDS: dict[str, Callable[[NodeSpec, int], str]] = {
    "index": lambda _, index: str(index),
    "name": lambda spec, _: simulated_gpu_name(spec),
    "gpu_name": lambda spec, _: simulated_gpu_name(spec),
    "count": lambda spec, _: str(spec.gpus),
    "uuid": lambda spec, index: _uuid(spec, index),  # noqa: PLW0108 - defined below
    "gpu_uuid": lambda spec, index: _uuid(spec, index),  # noqa: PLW0108 - defined below
    "serial": lambda *_: "[N/A]",
    "pci.bus_id": lambda _, index: f"00000000:{index:02X}:00.0",
    "gpu_bus_id": lambda _, index: f"00000000:{index:02X}:00.0",
    "driver_version": lambda *_: DRIVER,
    "compute_cap": lambda spec, _: _compute(spec.gpu),
    "compute_mode": lambda *_: "Default",
    "persistence_mode": lambda *_: "Enabled",
    "pstate": lambda *_: "P0",
    "temperature.gpu": lambda *_: "35",
    "utilization.gpu": lambda *_: "0 %",
    "utilization.memory": lambda *_: "0 %",
    "memory.total": lambda spec, _: f"{spec.gpu_memory_mib} MiB",
    "memory.used": lambda *_: "0 MiB",
    "memory.free": lambda spec, _: f"{spec.gpu_memory_mib} MiB",
    "power.draw": lambda *_: "40.00 W",
    "power.limit": lambda *_: "300.00 W",
    "clocks.sm": lambda *_: "135 MHz",
    "ecc.mode.current": lambda *_: "Enabled",
    "ecc.mode.pending": lambda *_: "Enabled",
}
_COMPUTE = {"V100": "7.0", "P100": "6.0", "T4": "7.5", "A10G": "8.6", "A100": "8.0", "L4": "8.9", "L40S": "8.9",
            "H100": "9.0", "H200": "9.0", "B200": "10.0"}  # fmt: skip


def simulated_gpu_name(spec: NodeSpec) -> str:
    """Return the GPU's name, marked as simulated."""
    return f"{spec.gpu} (simulated)"


def simulate_nvidia_smi(spec: NodeSpec, arguments: Sequence[str]) -> tuple[str, int]:
    """Return the output and exit status of `nvidia-smi` for these arguments."""
    if not spec.gpus:
        return "No devices were found\n", 6
    options = dict(argument.lstrip("-").partition("=")[::2] for argument in arguments)
    if "L" in options or "list-gpus" in options:
        lines = [f"GPU {index}: {simulated_gpu_name(spec)} (UUID: {_uuid(spec, index)})" for index in range(spec.gpus)]
        return "".join(f"{line}\n" for line in lines), 0
    if "query-gpu" in options:
        return _query(spec, options)
    if "query-compute-apps" in options or "query-accounted-apps" in options:
        return "", 0
    return _table(spec), 0


def _query(spec: NodeSpec, options: dict[str, str]) -> tuple[str, int]:
    names = [name.strip() for name in options["query-gpu"].split(",")]
    shape = options.get("format", "")
    unknown = [name for name in names if name not in _FIELDS and not _is_count(name)]
    if unknown:
        return f'Field "{unknown[0]}" is not a valid field to query.\n\n', 2
    if "csv" not in shape:
        return '"--format=csv" must be given with "--query-gpu"\n', 2
    rows = [[_value(spec, index, name) for name in names] for index in _selected(spec, options)]
    if "nounits" in shape:
        rows = [[_bare(value) for value in row] for row in rows]
    if "noheader" not in shape:
        rows.insert(0, [_header(name) for name in names])
    return "".join(", ".join(row) + "\n" for row in rows), 0


def _selected(spec: NodeSpec, options: dict[str, str]) -> Sequence[int]:
    option = options.get("i") or options.get("id") or ""
    chosen = option.split(",")
    return [number for number in range(spec.gpus) if str(number) in chosen] or range(spec.gpus)


def _value(spec: NodeSpec, index: int, name: str) -> str:
    return "0" if _is_count(name) else _FIELDS[name](spec, index)


def _is_count(name: str) -> bool:
    """Return True for error counters, which are always zero."""
    return name.startswith(("ecc.errors.", "retired_pages.", "remapped_rows.", "clocks_throttle_reasons."))


def _bare(value: str) -> str:
    return value.removesuffix(" MiB").removesuffix(" %").removesuffix(" W").removesuffix(" MHz")


def _header(name: str) -> str:
    unit = "MiB" if name.startswith("memory.") else "%" if name.startswith("utilization.") else ""
    unit = unit or ("W" if name.startswith("power.") else "MHz" if name.startswith("clocks.") else "")
    return f"{name} [{unit}]" if unit else name


def _uuid(spec: NodeSpec, index: int) -> str:
    digits = "".join(letter for letter in spec.instance_id if letter in "0123456789abcdef").rjust(32, "0")[-32:]
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:30]}{index:02x}"


def _compute(gpu: str) -> str:
    return next((version for name, version in _COMPUTE.items() if name in gpu.upper()), "[N/A]")


def _table(spec: NodeSpec) -> str:
    rule = "+" + "-" * 77 + "+"
    head = f"| NVIDIA-SMI {DRIVER} (simulated)   Driver Version: {DRIVER}   CUDA Version: {_CUDA}"
    rows = [
        f"| {index:3d}  {simulated_gpu_name(spec):<40} 0MiB / {spec.gpu_memory_mib}MiB" for index in range(spec.gpus)
    ]
    return "\n".join([rule, *(f"{row:<78}|" for row in (head, *rows)), rule]) + "\n"
