"""The CUDA library whose initialization fails: loaded by the machine's loader, and its instructions for Arm."""

import ctypes
import platform
import struct
import subprocess
from pathlib import Path

import pytest

from cloudgpu.rehearsal.nodes import gpus

native = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"), reason="needs an ELF loader"
)


@native
@pytest.mark.parametrize(
    ("error", "name"), [(802, b"CUDA_ERROR_SYSTEM_NOT_READY"), (999, b"CUDA_ERROR_UNKNOWN"), (1234, b"")]
)
def test_library_is_loaded_and_returns_the_error_and_its_name(tmp_path: Path, error: int, name: bytes) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(gpus.cuda_library(error, platform.machine()))
    library, found = ctypes.CDLL(str(path)), ctypes.c_char_p()
    assert library.cuInit(0) == error
    assert (library.cuGetErrorName(error, ctypes.byref(found)), found.value) == (0, name)


def test_library_for_arm_contains_the_expected_instructions() -> None:
    library = gpus.cuda_library(802, "aarch64")
    assert struct.unpack_from("<HH", library, 16) == (3, 183)
    mov_error, ret, adr, store, mov_0 = 0x52806440, 0xD65F03C0, 0x10FFFEE8, 0xF9000028, 0x52800000
    at = library.index(struct.pack("<6I", mov_error, ret, adr, store, mov_0, ret))
    # `adr` is the third instruction, and its distance of -36 bytes leads to the name.
    assert library[at + 8 - 36 :].startswith(b"CUDA_ERROR_SYSTEM_NOT_READY\0")


@native
def test_command_installs_and_removes_the_library_below_a_root(tmp_path: Path) -> None:
    root = str(tmp_path)
    subprocess.run(gpus.installation_command(root, 999), check=True)
    (installed,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert str(installed.relative_to(root)) == gpus.LIBRARY_FILE
    subprocess.run(gpus.installation_command(root, 0), check=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
