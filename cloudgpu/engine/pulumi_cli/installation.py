"""Find the Pulumi CLI, or install it if the user passed `--install-pulumi`."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.error import URLError

from pulumi.automation import PulumiCommand

from cloudgpu.errors import ConnectError, StateError, UsageError

Install = Callable[[Path], None]

_LANGUAGE_HOST: Final = "pulumi-language-python"
_HINT: Final = (
    "pass --install-pulumi to install it into the state home, install it yourself "
    "(https://www.pulumi.com/docs/install), set pulumi_command to its path, or leave out --engine pulumi"
)


def find_pulumi_cli(named: Path | None, root: Path, environ: Mapping[str, str], install: Install | None = None) -> Path:
    """Return the path of the CLI from the settings, the PATH or the state home. If there is none, install the CLI.

    Args:
        named: The path from the settings.
        root: The directory that `--install-pulumi` installs into.
        environ: The caller's environment.
        install: Function that installs the CLI below `root`; None if the user did not allow installation.
    """
    installed = root / "bin" / "pulumi"
    executable = _named(named) if named else _on_path(environ) or (installed if _runs(installed) else None)
    if executable is None and install is not None:
        install(root)
        executable = installed if _runs(installed) else None
    if executable is None:
        raise UsageError("the pulumi engine needs the Pulumi CLI, which is not on the PATH", hint=_HINT)
    _check_language_host(executable, environ)
    return executable


def install(root: Path) -> None:
    """Download the CLI version that matches the SDK and install it below `root`."""
    try:
        PulumiCommand.install(root=str(root))
    except URLError as err:
        message = f"downloading the Pulumi CLI failed: {err.reason}"
        raise ConnectError(
            message, hint="check the network, or install it yourself: https://www.pulumi.com/docs/install"
        ) from err
    except subprocess.CalledProcessError as err:
        output = (err.output or b"").decode(errors="replace").strip().splitlines()
        message = f"the installer of the Pulumi CLI failed: {output[-1] if output else err}"
        raise StateError(message, hint="install it yourself: https://www.pulumi.com/docs/install") from err
    except OSError as err:
        message = f"cannot install the Pulumi CLI in {root}: {err.strerror or err}"
        raise StateError(message, hint="free some space, or set CLOUDGPU_HOME to a directory you can write to") from err


def _named(path: Path) -> Path:
    if not _runs(path):
        message = f"pulumi_command is set to {path}, which is not an executable file"
        raise UsageError(message, hint="set it to the path of the `pulumi` executable, or remove the setting")
    return path


def _on_path(environ: Mapping[str, str]) -> Path | None:
    path = shutil.which("pulumi", path=environ.get("PATH", os.defpath))
    return Path(path) if path else None


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _check_language_host(executable: Path, environ: Mapping[str, str]) -> None:
    search_path = os.pathsep.join([str(executable.parent), environ.get("PATH", os.defpath)])
    if shutil.which(_LANGUAGE_HOST, path=search_path) is None:
        message = f"the Pulumi CLI {executable} lacks {_LANGUAGE_HOST}, so it cannot run Python programs"
        raise UsageError(message, hint="install the complete Pulumi distribution: https://www.pulumi.com/docs/install")
