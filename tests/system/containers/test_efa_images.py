"""The two image definitions, built unchanged by a real Docker engine, and their plugin loaded as NCCL loads it.

Neither NVIDIA's images nor AWS's installer are available here. Both are stand-ins that reproduce these facts:

- Base: a plugin, libfabric and its package of an older version below /opt/amazon; `/etc/ld.so.conf.d/aws-ofi-nccl.conf`
  with a path that has no plugin; `NCCL_NET_PLUGIN=spcx` (NVIDIA-NeMo/Megatron-Bridge pull request 5033).
- Installer 1.50: refuses older packages and that path (NVIDIA's `container/deps/efa/install_efa.sh` in ai-dynamo/dynamo
  purges both); with the NGC variant, which it chooses by itself in such a base, it installs `libnccl-net-ofi.so` alone,
  otherwise `libnccl-net.so` as well and a path for the loader (`contrib/debian-template/*.install` in
  aws/aws-ofi-nccl); the plugin needs libfabric.
- NCCL: `NCCL_NET_PLUGIN` as a file, then as `libnccl-net-$NCCL_NET_PLUGIN.so`; without it `libnccl-net.so`
  (`src/plugin/plugin_open.cc` in NVIDIA/nccl).

The stand-in plugin, libfabric and the program that loads them are compiled here, and ld.so, ldconfig, bash and tar are
the machine's own. Downloads, packages, the signature, nvcc and git are answered by scripts.
"""

import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudgpu.node.agent import transport

pytestmark = pytest.mark.system

IMAGES = Path(__file__).parents[3] / "images"
TOOLS = (
    *("bash", "tar", "gzip", "grep", "ldconfig", "true", "mktemp", "mkdir", "rm", "cp", "mv", "test", "cat"),
    *("ls", "sed", "find", "chmod", "nproc", "sleep", "env", "touch"),
)
OLD_PACKAGES = "libfabric1-aws\nlibnccl-ofi-ngc-v2\n"
FABRIC = "int fi_version(void) { return FABRIC; }"
PLUGIN = "extern int fi_version(void); int ncclNetPlugin_v10(void) { return fi_version(); }"
LOADER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *load(const char *name) {
  void *plugin = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!plugin) printf("%s\n", dlerror());
  return plugin;
}

int main(void) {
  const char *set = getenv("NCCL_NET_PLUGIN");
  char name[4096] = "libnccl-net.so";
  void *plugin = NULL;
  if (set && *set) {
    plugin = load(set);
    snprintf(name, sizeof name, "libnccl-net-%s.so", set);
  }
  if (!plugin) plugin = load(name);
  int (*symbol)(void) = plugin ? (int (*)(void))dlsym(plugin, "ncclNetPlugin_v10") : NULL;
  if (!symbol) return 1;
  printf("loaded %s over libfabric %d\n", name, symbol());
  return 0;
}
"""
INSTALLER = r"""#!/bin/bash
set -e
ngc=yes
for word in "$@"; do
  case $word in
    -y | --skip-kmod | --skip-limit-conf | --no-verify | --enable-ngc | --disable-build-ngc) ;;
    --disable-ngc) ngc=no ;;
    *) echo "unknown option: $word"; exit 1 ;;
  esac
done
[ -e /etc/nvidia-ngc ] || ngc=no
if [ -e /etc/ld.so.conf.d/aws-ofi-nccl.conf ]; then echo "stale /etc/ld.so.conf.d/aws-ofi-nccl.conf"; exit 1; fi
if [ -s /var/lib/packages ]; then echo "conflicting packages: $(cat /var/lib/packages)"; exit 1; fi
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p /opt/amazon/efa/bin /opt/amazon/efa/lib /opt/amazon/ofi-nccl/lib /opt/amazon/openmpi/lib
cp "$here/libfabric.so.1" /opt/amazon/efa/lib/
cp "$here/true" /opt/amazon/efa/bin/fi_info
cp "$here/libnccl-net-ofi.so" /opt/amazon/ofi-nccl/lib/
echo /opt/amazon/efa/lib >/etc/ld.so.conf.d/000_efa.conf
if [ $ngc = no ]; then
  cp "$here/libnccl-net.so" /opt/amazon/ofi-nccl/lib/
  echo /opt/amazon/ofi-nccl/lib >/etc/ld.so.conf.d/100_ofinccl.conf
fi
ldconfig
"""
SCRIPTS = {
    # The last argument but one is the file after --output.
    "curl": 'while [ "$#" -gt 0 ]; do [ "$1" != --output ] || to=$2; shift; done\n'
    'case $to in *.tar.gz) cp /srv/installer.tar.gz "$to" ;; *) touch "$to" ;; esac',
    "gpg": 'case "$*" in *--verify*) echo "[GNUPG:] VALIDSIG AA 2026-01-01 1 0 4 0 1 10 00 '
    '4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC" ;; esac',
    "dpkg-query": 'grep -qx -e "$2" /var/lib/packages',
    "apt-get": r'case $1 in purge) shift 2; for name in "$@"; do sed -i "/^$name\$/d" /var/lib/packages; done ;; esac',
    "git": 'mkdir -p "${@: -1}"',
    "make": 'mkdir -p "$2/build"; touch "$2/build/all_reduce_perf"',
    "cuobjdump": "echo ELF file 1: all_reduce_perf.sm_70.cubin",
}


def compiled(folder: Path, output: str, source: str, *flags: str) -> Path:
    (folder / "source.c").write_text(source)
    subprocess.run(["gcc", "-o", folder / output, folder / "source.c", *flags], check=True, capture_output=True)
    return folder / output


def plugins(folder: Path, version: int) -> Path:
    """Compile libfabric and the plugin under both names."""
    folder.mkdir()
    shared = ("-shared", "-fPIC", f"-DFABRIC={version}")
    compiled(folder, "libfabric.so.1", FABRIC, *shared, "-Wl,-soname,libfabric.so.1")
    for name in ("libnccl-net.so", "libnccl-net-ofi.so"):
        compiled(folder, name, PLUGIN, *shared, f"-Wl,-soname,{name}", str(folder / "libfabric.so.1"))
    return folder


def copy_program(root: Path, program: str) -> None:
    """Copy a program of this machine with its libraries."""
    path = Path(shutil.which(program, path="/usr/bin:/bin:/usr/sbin:/sbin") or program).resolve()
    needed = subprocess.run(["ldd", path], check=False, capture_output=True, text=True).stdout  # fails for a static one
    libraries = re.findall(r"(/\S+) \(0x", needed)
    for source, target in [(path, f"usr/bin/{program}"), *((Path(one).resolve(), one[1:]) for one in libraries)]:
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, root / target)


def base_root(folder: Path, *, ngc: bool) -> None:
    """Lay out the stand-in for a base image, with the installer that it can download."""
    for name in ("etc/ld.so.conf.d", "var/lib", "var/lib/apt/lists", "usr/bin", "srv", "tmp", "proc"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "sbin"):
        (folder / name).symlink_to("usr/bin")
    for program in TOOLS:
        copy_program(folder, program)
    (folder / "usr/bin/sh").symlink_to("bash")
    (folder / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (folder / "var/lib/packages").write_text(OLD_PACKAGES if ngc else "")
    for name, script in SCRIPTS.items():
        (folder / "usr/bin" / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / "usr/bin" / name).chmod(0o755)
    with tempfile.TemporaryDirectory() as made:
        compiled(Path(made), "load-as-nccl", LOADER)
        shutil.copy(Path(made) / "load-as-nccl", folder / "usr/bin")
        if ngc:
            (folder / "etc/nvidia-ngc").touch()
            (folder / "etc/ld.so.conf.d/aws-ofi-nccl.conf").write_text("/opt/amazon/ofi-nccl/lib\n")
            old = folder / "opt/amazon/efa/lib"
            old.mkdir(parents=True)
            shutil.copy(plugins(Path(made) / "old", 1) / "libfabric.so.1", old)
        parts = plugins(Path(made) / "aws-efa-installer", 2)
        shutil.copy("/bin/true", parts / "true")
        (parts / "efa_installer.sh").write_text(INSTALLER)
        (parts / "efa_installer.sh").chmod(0o755)
        with tarfile.open(folder / "srv/installer.tar.gz", "w:gz") as archive:
            archive.add(parts, "aws-efa-installer")


@dataclass(frozen=True)
class Builder:
    """Builds an image definition on the stand-in bases; `load` starts a program that loads the plugin as NCCL does."""

    run: Callable

    def build(self, text: str, *arguments: str, tag: str = "efa:test") -> subprocess.CompletedProcess:
        words = [word for one in arguments for word in ("--build-arg", one)]
        command = ("build", "--network=none", "--force-rm", "--no-cache", *words, "--tag", tag, "-")
        return self.run(*command, check=False, stdin=text.encode())

    def load(self, image: str, *flags: str) -> str:
        done = self.run("run", "--rm", "--network=none", *flags, image, "load-as-nccl", check=False)
        return done.stdout.decode()


@pytest.fixture(scope="module")
def builder(docker, engine_root: Path) -> Iterator[Builder]:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (scripts/test-parts installs it with g++)")
    for name, ngc in (("ngc:26.06", True), ("nvidia/cuda:12.6.3-devel-ubuntu22.04", False)):
        folder = Path(tempfile.mkdtemp(dir=engine_root))
        base_root(folder, ngc=ngc)
        packed = subprocess.run(["tar", "-C", folder, "-c", "."], check=True, capture_output=True).stdout
        more = ("--change", "ENV NCCL_NET_PLUGIN=spcx") if ngc else ()
        docker.run("import", *more, "-", name, stdin=packed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_BUILDKIT", "0")  # BuildKit's client is a plugin that may not be installed
        yield Builder(docker.run)


def definition(name: str) -> str:
    return (IMAGES / name / "Dockerfile").read_text()


def test_stand_in_base_alone_has_no_plugin_for_nccl(builder: Builder) -> None:
    said = builder.load("ngc:26.06")
    assert "libnccl-net-spcx.so: cannot open shared object file" in said
    assert "loaded" not in said


def test_check_before_the_ranks_start_agrees_with_nccl(builder: Builder) -> None:
    def problem(image: str, *flags: str) -> str:
        command = ("run", "--rm", "--network=none", *flags, image, "sh", "-c", transport.PLUGIN_SCRIPT)
        return transport.parse_plugin_problem(builder.run(*command, check=False).stdout.decode())

    assert problem("ngc:26.06") == "the loader cannot find libnccl-net-spcx.so"
    assert problem("ngc:26.06", "--env", "NCCL_NET_PLUGIN=") == "the loader cannot find libnccl-net.so"
    assert builder.build(definition("efa-nccl"), "BASE_IMAGE=ngc:26.06").returncode == 0
    assert problem("efa:test") == problem("efa:test", "--env", "NCCL_NET_PLUGIN=") == ""
    assert problem("efa:test", "--env", "NCCL_NET_PLUGIN=spcx") == "the loader cannot find libnccl-net-spcx.so"


def test_framework_image_loads_the_plugin_under_both_names(builder: Builder) -> None:
    done = builder.build(definition("efa-nccl"), "BASE_IMAGE=ngc:26.06")
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert "loaded libnccl-net-ofi.so over libfabric 2" in builder.load("efa:test")
    assert "loaded libnccl-net.so over libfabric 2" in builder.load("efa:test", "--env", "NCCL_NET_PLUGIN=")


def test_nccl_tests_image_loads_the_plugin_under_both_names(builder: Builder) -> None:
    done = builder.build(definition("nccl-tests"), tag="nccl-tests:test")
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert "loaded libnccl-net-ofi.so over libfabric 2" in builder.load("nccl-tests:test")
    assert "loaded libnccl-net.so over libfabric 2" in builder.load("nccl-tests:test", "--env", "NCCL_NET_PLUGIN=")


@pytest.mark.parametrize(
    ("removed", "replacement", "why"),
    [
        (" /etc/ld.so.conf.d/aws-ofi-nccl.conf", "", "stale /etc/ld.so.conf.d/aws-ofi-nccl.conf"),
        ('apt-get purge -y "${packages[@]}"', "true", "conflicting packages"),
        (" --disable-ngc --disable-build-ngc", "", "libnccl-net.so: "),
    ],
)
def test_build_without_one_of_its_precautions_fails(builder: Builder, removed: str, replacement: str, why: str) -> None:
    text = definition("efa-nccl")
    assert text.count(removed) == 1
    done = builder.build(text.replace(removed, replacement), "BASE_IMAGE=ngc:26.06", tag="efa:spoiled")
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode != 0
    assert why in said
