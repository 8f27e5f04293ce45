"""A local apt archive with the dependencies of Ubuntu's NVIDIA driver packages, and isolated use of the real apt.

Dependencies: control file of `nvidia-graphics-drivers-580-server` (github.com/canonical/nvidia-graphics-drivers, branch
580-server-jammy). Modules: `apt show` of linux-modules-nvidia-525-server-5.15.0-69-generic in NVIDIA's documentation of
precompiled drivers, where the `-open` variants also have an upper bound. Their own version is that of the kernel.
"""

import hashlib
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

KERNEL = "6.8.0-1024-aws"
_KERNEL_VERSION = "6.8.0-1024.26~22.04.1"
Packages = Mapping[tuple[str, str], str]
"""The dependencies of each package, by name and version."""


def libraries(version: str) -> Packages:
    """Return the packages of the driver's source, which are all replaced when the archive gets a newer version."""
    debian = f"{version}-0ubuntu0.22.04.1"
    common = f"nvidia-kernel-common-580-server (<= {version}-1), nvidia-kernel-common-580-server (>= {version})"
    provided = f"nvidia-kernel-common-580-server-{version}"
    packages = {
        "nvidia-kernel-common-580-server": f"nvidia-firmware-580-server-{version}",
        f"nvidia-firmware-580-server-{version}": "",
        "nvidia-utils-580-server": provided,
        "libnvidia-compute-580-server": provided,
        "libnvidia-cfg1-580-server": provided,
        "nvidia-compute-utils-580-server": "libnvidia-compute-580-server",
    }
    for flavour in ("", "-open"):
        source = f"nvidia-kernel-source-580-server{flavour}"
        packages[source] = ""
        packages[f"nvidia-dkms-580-server{flavour}"] = (
            f"dkms, {source} (<= {version}-1), {source} (>= {version}), {common}"
        )
        packages[f"nvidia-headless-no-dkms-580-server{flavour}"] = ", ".join(
            [
                common,
                *(f"{name} (= {debian})" for name in (source, "libnvidia-compute-580-server")),
                *(f"{name} (= {debian})" for name in ("nvidia-compute-utils-580-server", "libnvidia-cfg1-580-server")),
            ]
        )
    return {(name, debian): depends for name, depends in packages.items()}


def kernel_packages(version: str) -> Packages:
    """Return the packages of the kernel, whose prebuilt modules contain this version of the driver."""
    common = f"nvidia-kernel-common-580-server (>= {version})"
    packages = {f"linux-headers-{KERNEL}": "", "dkms": ""}
    for flavour, bound in (("", ""), ("-open", f"nvidia-kernel-common-580-server (<= {version}-1), ")):
        objects = f"linux-objects-nvidia-580-server{flavour}-{KERNEL}"
        packages[objects] = ""
        packages[f"linux-modules-nvidia-580-server{flavour}-{KERNEL}"] = (
            f"debconf (>= 0.5) | debconf-2.0, {objects} (= {_KERNEL_VERSION}), {bound}{common}"
        )
    return {(name, _KERNEL_VERSION): depends for name, depends in {**packages, "debconf-2.0": ""}.items()}


def fabric_manager(*versions: str) -> Packages:
    """Return these versions of Fabric Manager."""
    return {("nvidia-fabricmanager-580", f"{version}-1"): "" for version in versions}


@dataclass(frozen=True)
class Apt:
    """The real apt, with its own configuration, package index and state."""

    root: Path

    def script(self, program: str) -> str:
        """Return the shell text that runs the program; installations are only simulated, and written to `installs`."""
        run = f'{shutil.which(program)} "$@"'
        setting = f"export APT_CONFIG={self.root}/apt.conf\n"
        if program == "apt-cache":
            return f"{setting}exec {run}"
        installs = self.root / "installs"
        simulated = run.replace('"$@"', '-s "$@"')
        return (
            f'{setting}case " $* " in\n*" -s "*|*" update "*) exec {run} ;;\n'
            f'*" install "*) {simulated} >{installs}.new || exit; mv {installs}.new {installs} ;;\nesac'
        )

    def installed(self) -> dict[str, str]:
        """Return the version of every package that the last installation would have installed."""
        lines = (self.root / "installs").read_text().splitlines()
        return {line.split()[1]: line.split()[2].lstrip("(") for line in lines if line.startswith("Inst ")}


@contextmanager
def archive(root: Path, *packages: Packages) -> Iterator[Apt]:
    """Serve the packages on a local port, and yield an apt whose only source they are."""
    served = root / "served"
    served.mkdir(parents=True)
    text = "".join(_stanza(*key, depends) for part in packages for key, depends in part.items())
    (served / "Packages").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (served / "Release").write_text(f"Date: Sat, 21 Nov 2026 00:00:00 UTC\nSHA256:\n {digest} {len(text)} Packages\n")
    handler = partial(_Quiet, directory=str(served))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield _apt(root, f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def _stanza(name: str, version: str, depends: str) -> str:
    lines = [f"Package: {name}", f"Version: {version}", "Architecture: all", f"Filename: {name}.deb", "Size: 1"]
    if name == "nvidia-kernel-common-580-server":
        lines.append(f"Provides: nvidia-kernel-common, {name}-{version.partition('-')[0]}")
    if depends:
        lines.append(f"Depends: {depends}")
    return "\n".join([*lines, "", ""])


def _apt(root: Path, url: str) -> Apt:
    for folder in ("etc/apt", "state/lists/partial", "cache/archives/partial", "log"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "status").write_text("")
    (root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] {url} ./\n")
    settings = {
        "Dir": str(root),
        "Dir::State": "state",
        "Dir::State::status": str(root / "status"),
        "Dir::Cache": "cache",
        "Dir::Etc": "etc/apt",
        "Dir::Log": "log",
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
        "Acquire::http::Proxy": "DIRECT",
    }
    (root / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    return Apt(root)
