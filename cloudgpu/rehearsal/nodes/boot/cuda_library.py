"""A CUDA driver library whose `cuInit` fails, built as an ELF file, because nodes may have no compiler.

Only nodes with a CUDA fault have it, so that both checks of CUDA, the bootstrap's and the agent's, load a real library.
"""

import base64
import platform
import struct
from collections.abc import Callable, Mapping

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
_HEADER, _PROGRAM_HEADERS, _PROGRAM_HEADER = 64, 4, 56
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
