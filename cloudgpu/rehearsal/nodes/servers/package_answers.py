"""Replies of apt and `modinfo`: a package archive with the NVIDIA driver, as Ubuntu publishes it.

Prebuilt modules are bound to a kernel, and the archive keeps only the newest libraries. After a driver update, the
modules of an older kernel therefore do not match: `nvidia-smi` then reports a mismatch of driver and library. The
`-open` modules cannot even be installed with newer libraries, because their dependencies have an upper bound.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cloudgpu.rehearsal.nodes.gpus import DRIVER

_ARCHIVE = "http://us-east-1.ec2.archive.ubuntu.com/ubuntu"
_DEBIAN = "-0ubuntu0.22.04.1"
_MODULES = re.compile(r"linux-modules-nvidia-(\d+)-server(-open)?-")
_LIBRARIES = re.compile(r"(?:nvidia|libnvidia)-[a-z-]+-(\d+)(?:-server)?(?:-open)?$")
_NEWER = ".173.02"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {}\n"
"""Output of `nvidia-smi`, which then exits with code 18, if its library and the loaded module differ."""


@dataclass(frozen=True)
class Archive:
    """The package archive. If `newer_libraries`, the libraries are newer than the prebuilt modules of the kernel."""

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
