"""Simulated GPUs and their software: `nvidia-smi`, driver packages, and a CUDA library whose `cuInit` fails.

The library is built as an ELF file, because nodes may have no compiler. Only nodes with a CUDA fault have it, so that
both checks of CUDA, the bootstrap's and the agent's, load a real library. Every GPU name contains `(simulated)`.
"""

import base64
import platform
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cloudgpu.rehearsal.nodes.values import NodeSpec

DRIVER = "580.126.09"
_CUDA = "13.0"
FABRIC_MANAGER = "nvidia-fabricmanager"
"""Name prefix of the package, and the name of the systemd unit."""
FABRIC_MANAGER_FAILED = (
    f"Job for {FABRIC_MANAGER}.service failed because the control process exited with error code.\n"
    f'See "systemctl status {FABRIC_MANAGER}.service" and "journalctl -xeu {FABRIC_MANAGER}.service" for details.\n'
)
"""Error of `systemctl start` when Fabric Manager exits."""
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
_NAMES: Mapping[int, str] = {
    3: "CUDA_ERROR_NOT_INITIALIZED",
    100: "CUDA_ERROR_NO_DEVICE",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    999: "CUDA_ERROR_UNKNOWN",
}
_FUNCTIONS = ("cuInit", "cuGetErrorName")
_LIBRARY = "libcuda.so.1"
LIBRARY_FILE = f"usr/lib/{_LIBRARY}"
"""Path of the library in every node that has it."""
_PAGE = 0x10000
"""The largest page size of both architectures."""
_INSTALL = f"""
root=$1
text=$2
shift 2
for folder do
  [ -d "$root$folder" ] || [ "$folder" = /usr/lib ] || continue
  mkdir -p "$root$folder"
  printf %s "$text" | base64 -d >"$root$folder/{_LIBRARY}"
done
"""
_REMOVE = f"""
root=$1
shift
for folder do rm -f "$root$folder/{_LIBRARY}"; done
"""
_ARCHIVE = "http://us-east-1.ec2.archive.ubuntu.com/ubuntu"
_DEBIAN = "-0ubuntu0.22.04.1"
_MODULES = re.compile(r"linux-modules-nvidia-(\d+)-server(-open)?-")
_LIBRARIES = re.compile(r"(?:nvidia|libnvidia)-[a-z-]+-(\d+)(?:-server)?(?:-open)?$")
_NEWER = ".173.02"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {}\n"
"""Output of `nvidia-smi`, which then exits with code 18, if its library and the loaded module differ."""


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


_HEADER, _PROGRAM_HEADERS, _PROGRAM_HEADER = 64, 4, 56


def installation_command(root: str, error: int) -> list[str]:
    """Return the command that installs the library below `root` on the node. Errors are 1 to 9999; 0 removes it.

    The command is empty on machines whose libraries are not ELF files of a known architecture.
    """
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in _CODE:
        return []
    # The directories that the loaders of Debian and Fedora search; a node without a file system of its own has only the
    # first of them.
    folders = ["/usr/lib", "/usr/lib64", f"/usr/lib/{machine}-linux-gnu"]
    if not error:
        return ["/bin/sh", "-c", _REMOVE, "cuda", root, *folders]
    text = base64.b64encode(cuda_library(error, machine)).decode()
    return ["/bin/sh", "-c", _INSTALL, "cuda", root, text, *folders]


def cuda_library(error: int, machine: str) -> bytes:
    """Return a shared library for `x86_64` or `aarch64` whose `cuInit` returns `error`."""
    name = _NAMES.get(error, "").encode() + b"\0"
    strings = b"\0" + b"".join(function.encode() + b"\0" for function in _FUNCTIONS) + _LIBRARY.encode() + b"\0"
    symbols_at = _HEADER + _PROGRAM_HEADERS * _PROGRAM_HEADER
    hash_at = symbols_at + 24 * (1 + len(_FUNCTIONS))
    hashes = _hash_table(len(_FUNCTIONS))
    strings_at = hash_at + len(hashes)
    name_at = strings_at + len(strings)
    code_at = _aligned(name_at + len(name), 16)
    functions = _CODE[machine](error, code_at, name_at)
    offsets = [code_at, code_at + len(functions[0])]
    code = b"".join(functions)
    dynamic_at = _aligned(code_at + len(code), 16)
    dynamic = _dynamic(symbols_at, hash_at, strings_at, len(strings))
    names_at = [strings.index(function.encode()) for function in _FUNCTIONS]
    rows = zip(names_at, offsets, map(len, functions), strict=True)
    # Global functions in section 1, which only means that they are defined.
    symbols = bytes(24) + b"".join(struct.pack("<IBBHQQ", at, 0x12, 0, 1, offset, size) for at, offset, size in rows)
    headers = _headers(machine, dynamic_at, len(dynamic))
    body = (headers + symbols + hashes + strings + name).ljust(code_at, b"\0") + code
    return body.ljust(dynamic_at, b"\0") + dynamic


def _headers(machine: str, dynamic_at: int, dynamic_size: int) -> bytes:
    number = {"x86_64": 62, "aarch64": 183}[machine]
    identification = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack("<HHIQQQIHHHHHH", 3, number, 1, 0, _HEADER, 0, 0, _HEADER, 56, _PROGRAM_HEADERS, 64, 0, 0)
    readable, writable, executable = 4, 2, 1
    address = _PAGE + dynamic_at  # in a page of its own, because the loader writes to this section
    rows = [
        (1, readable | executable, 0, 0, dynamic_at, _PAGE),
        (1, readable | writable, dynamic_at, address, dynamic_size, _PAGE),
        (2, readable | writable, dynamic_at, address, dynamic_size, 8),
        (0x6474E551, readable | writable, 0, 0, 0, 16),  # the stack is not executable
    ]
    packed = [
        struct.pack("<IIQQQQQQ", kind, flags, offset, at, at, size, size, align)
        for kind, flags, offset, at, size, align in rows
    ]
    return identification + header + b"".join(packed)


def _dynamic(symbols_at: int, hash_at: int, strings_at: int, strings_size: int) -> bytes:
    hashes, strings, symbols, size, entry, end = 4, 5, 6, 10, 11, 0
    places = [(hashes, hash_at), (strings, strings_at), (symbols, symbols_at)]
    return b"".join(struct.pack("<QQ", *row) for row in (*places, (size, strings_size), (entry, 24), (end, 0)))


def _hash_table(count: int) -> bytes:
    """Return a symbol hash table with a single bucket: a chain of all symbols."""
    chain = [0, *range(2, count + 1), 0]
    return struct.pack(f"<{3 + len(chain)}I", 1, len(chain), 1, *chain)


def _x86_64(error: int, code_at: int, name_at: int) -> tuple[bytes, bytes]:
    initialize = b"\xb8" + struct.pack("<I", error) + b"\xc3"  # mov eax, error; ret
    distance = name_at - (code_at + len(initialize) + 7)
    # lea rax, [rip + distance]; mov [rsi], rax; xor eax, eax; ret
    return initialize, b"\x48\x8d\x05" + struct.pack("<i", distance) + b"\x48\x89\x06\x31\xc0\xc3"


def _aarch64(error: int, code_at: int, name_at: int) -> tuple[bytes, bytes]:
    end = 0xD65F03C0  # ret
    initialize = struct.pack("<II", 0x52800000 | error << 5, end)  # mov w0, #error
    distance = (name_at - (code_at + len(initialize))) & 0x1FFFFF
    address = 0x10000008 | (distance & 3) << 29 | (distance >> 2) << 5  # adr x8, name
    return initialize, struct.pack("<IIII", address, 0xF9000028, 0x52800000, end)  # str x8, [x1]; mov w0, #0


_CODE: Mapping[str, Callable[[int, int, int], tuple[bytes, bytes]]] = {"x86_64": _x86_64, "aarch64": _aarch64}


def _aligned(size: int, step: int) -> int:
    return -(-size // step) * step


@dataclass(frozen=True)
class Archive:
    """A package archive with the NVIDIA driver, as Ubuntu publishes it, as apt shows it.

    Prebuilt modules are bound to a kernel, and the archive keeps only the newest libraries. If `newer_libraries`, these
    are newer than the prebuilt modules, as after a driver update: `nvidia-smi` then reports a mismatch of driver and
    library. The `-open` modules cannot even be installed with newer libraries, because their dependencies have an upper
    bound.
    """

    newer_libraries: bool = False

    def library_version(self, branch: str) -> str:
        """Return the driver version of the libraries, of DKMS modules and of Fabric Manager."""
        return f"{branch}{_NEWER}" if self.newer_libraries else self.module_version(branch)

    def module_version(self, branch: str) -> str:
        """Return the driver version of the modules that are prebuilt for the node's kernel."""
        return f"{branch}.{DRIVER.partition('.')[2]}"

    def update(self, *, reachable: bool) -> str:
        """Return the output of `apt-get update`, which also exits with code 0 if no archive can be reached."""
        if reachable:
            return f"Hit:1 {_ARCHIVE} jammy InRelease\nReading package lists...\n"
        return (
            f"Err:1 {_ARCHIVE} jammy InRelease\n  Could not connect: connection timed out\nReading package lists...\n"
            f"W: Failed to fetch {_ARCHIVE}/dists/jammy/InRelease (simulated: no route to the internet)\n"
            "W: Some index files failed to download. They have been ignored, or old ones used instead.\n"
        )

    def cache(self, arguments: Sequence[str]) -> str:
        """Return the output of `apt-cache show`, `policy` or `madison`; empty for a package that is not simulated."""
        words = [word for word in arguments if not word.startswith("-")]
        if len(words) != len(("command", "package")):
            return ""
        command, name = words
        modules, libraries = _MODULES.match(name), _LIBRARIES.match(name)
        if command == "show" and modules:
            version, common = self.module_version(modules[1]), f"nvidia-kernel-common-{modules[1]}-server"
            bound = f"{common} (<= {version}-1), " if modules[2] else ""
            return f"Package: {name}\nVersion: 6.8.0-1024.26~22.04.1\nDepends: {bound}{common} (>= {version})\n\n"
        if command == "policy" and libraries:
            return f"{name}:\n  Installed: (none)\n  Candidate: {self.library_version(libraries[1])}{_DEBIAN}\n"
        if command == "madison" and libraries:
            suffix = "-1" if "fabricmanager" in name else _DEBIAN
            return f" {name} | {self.library_version(libraries[1])}{suffix} | {_ARCHIVE} jammy-updates/multiverse\n"
        return ""

    def conflict(self, packages: Sequence[str]) -> str:
        """Return apt's error if the packages cannot be installed together; otherwise empty."""
        modules = next((match for name in packages if (match := _MODULES.match(name)) and match[2]), None)
        if modules is None or not self.newer_libraries:
            return ""
        common, version = f"nvidia-kernel-common-{modules[1]}-server", self.module_version(modules[1])
        newest = f"{self.library_version(modules[1])}{_DEBIAN}"
        return (
            "The following packages have unmet dependencies:\n"
            f" {modules.string} : Depends: {common} (<= {version}-1) but {newest} is to be installed\n"
            "E: Unable to correct problems, you have held broken packages.\n"
        )

    def mismatch(self, installed: Sequence[str]) -> str:
        """Return the error of `nvidia-smi` if prebuilt modules and newer libraries are installed; otherwise empty."""
        modules = next((match for name in installed if (match := _MODULES.match(name))), None)
        if modules is None or not self.newer_libraries or any(name.startswith("nvidia-dkms-") for name in installed):
            return ""
        return MISMATCH.format(self.library_version(modules[1]).rpartition(".")[0])


def package_names(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the packages that an `install` command names, without their versions."""
    words = arguments[arguments.index("install") + 1 :]
    return tuple(word.partition("=")[0] for word in words if not word.startswith("-"))


def is_simulation(arguments: Sequence[str]) -> bool:
    """Return True if the command only shows what it would install."""
    return bool({"-s", "--simulate", "--dry-run", "--just-print"} & set(arguments))
