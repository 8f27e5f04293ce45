"""Finding the Pulumi CLI, or installing it where the user agreed to that."""

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
    "--install-pulumi installs it into the state home; or install it as https://www.pulumi.com/docs/install says, "
    "or name it (settings: pulumi_command); or leave --engine pulumi out"
)


def find(named: Path | None, root: Path, environ: Mapping[str, str], install: Install | None = None) -> Path:
    """The CLI: the one that the settings name, else the one on the PATH, else the home's own.

    Args:
        named: Where the settings say it is.
        root: Where `--install-pulumi` installs it.
        environ: The caller's environment.
        install: Installs it below `root`; None without the user's consent.

    Raises:
        UsageError: There is none, or it lacks its Python language host.
        ConnectError: It could not be fetched.
        StateError: It could not be installed.
    """
    own = root / "bin" / "pulumi"
    found = _named(named) if named else _on_path(environ) or (own if _runs(own) else None)
    if found is None and install is not None:
        install(root)
        found = own if _runs(own) else None
    if found is None:
        raise UsageError("the pulumi engine needs the Pulumi CLI, and there is none on the PATH", hint=_HINT)
    _check_language_host(found, environ)
    return found


def install(root: Path) -> None:
    """Fetch the CLI of the SDK's version from Pulumi and install it below `root`.

    Raises:
        ConnectError: It could not be fetched.
        StateError: Its installer failed.
    """
    try:
        PulumiCommand.install(root=str(root))
    except URLError as err:
        message = f"the Pulumi CLI could not be fetched: {err.reason}"
        raise ConnectError(message, hint="check the network, or install it by hand") from err
    except subprocess.CalledProcessError as err:
        said = (err.output or b"").decode(errors="replace").strip().splitlines()
        message = f"the installer of the Pulumi CLI failed: {said[-1] if said else err}"
        raise StateError(message, hint="install it by hand: https://www.pulumi.com/docs/install") from err
    except OSError as err:
        message = f"the Pulumi CLI could not be installed in {root}: {err.strerror or err}"
        raise StateError(message, hint="free some space, or set CLOUDGPU_HOME to a directory you can write to") from err


def _named(path: Path) -> Path:
    if not _runs(path):
        message = f"pulumi_command names {path}, which is no program"
        raise UsageError(message, hint="name the `pulumi` executable, or leave the setting out")
    return path


def _on_path(environ: Mapping[str, str]) -> Path | None:
    found = shutil.which("pulumi", path=environ.get("PATH", os.defpath))
    return Path(found) if found else None


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _check_language_host(found: Path, environ: Mapping[str, str]) -> None:
    where = os.pathsep.join([str(found.parent), environ.get("PATH", os.defpath)])
    if shutil.which(_LANGUAGE_HOST, path=where) is None:
        message = f"the Pulumi CLI {found} comes without {_LANGUAGE_HOST}, so it cannot run Python programs"
        raise UsageError(message, hint="install the whole Pulumi distribution")
