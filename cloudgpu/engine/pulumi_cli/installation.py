"""Find or install the Pulumi CLI, and its files: all are in the state home, none in the user's `~/.pulumi`."""

import os
import secrets
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final
from urllib.error import URLError

from pulumi.automation import PulumiCommand

from cloudgpu import files
from cloudgpu.engine.base import Stack
from cloudgpu.engine.direct.language_host import read_project
from cloudgpu.errors import ConnectError, StateError, UsageError
from cloudgpu.paths import unwritable_error

Install = Callable[[Path], None]

_LANGUAGE_HOST: Final = "pulumi-language-python"
_HINT: Final = (
    "pass --install-pulumi to install it into the state home, install it yourself "
    "(https://www.pulumi.com/docs/install), set pulumi_command to its path, or leave out --engine pulumi"
)
_TOKEN_LETTERS: Final = 8


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


@dataclass(frozen=True)
class Layout:
    """The directory of one cloud in the state home. AWS and the rehearsal cloud share neither plugins nor state."""

    root: Path

    @property
    def pulumi_home(self) -> Path:
        """The value of `PULUMI_HOME` for the CLI."""
        return self.root / "home"

    @property
    def passphrase(self) -> Path:
        """The file that contains the passphrase of Pulumi's state; readable only by its owner."""
        return self.root / "passphrase"

    @property
    def state(self) -> Path:
        """The directory of Pulumi's file backend."""
        return self.root / "state"

    @property
    def notes(self) -> Path:
        """The directory in which the rehearsal plugin stores data between commands."""
        return self.root / "notes"

    @property
    def plugin(self) -> Path:
        """The path at which the CLI looks for the AWS plugin version that the SDK requires."""
        name = f"resource-aws-v{version('pulumi-aws')}"
        return self.pulumi_home / "plugins" / name / "pulumi-resource-aws"

    def project(self, stack: Stack) -> Path:
        """Return the project directory of a stack. The CLI writes settings there, not in the program's directory."""
        return self.root / "projects" / stack_name(stack)

    def prepare(self, stack: Stack) -> Path:
        """Create the files that the CLI needs for this stack; return the project directory."""
        project = read_project(stack.program)
        folder = self.project(stack)
        try:
            for directory in (self.pulumi_home, self.state, self.notes, folder):
                files.make_private_directory(directory)
            if not self.passphrase.exists():
                _write_first(self.passphrase, secrets.token_urlsafe(32), 0o600)
            # The quoting in `_project_file` is valid YAML for any path.
            files.replace(folder / "Pulumi.yaml", _project_file(project.name, project.directory).encode())
        except OSError as err:
            raise unwritable_error(self.root, err) from err
        return folder

    def forget(self, stack: Stack) -> None:
        """Remove the project directory of a deleted stack."""
        try:
            shutil.rmtree(self.project(stack))
        except FileNotFoundError:
            pass
        except OSError as err:
            raise unwritable_error(self.root, err) from err

    def install_plugin(self) -> None:
        """Write the rehearsal plugin, a script that runs the plugin module with this Python interpreter."""
        text = plugin_script(self.notes)
        try:
            if not self.plugin.exists() or files.read_text(self.plugin, files.SETTINGS_BYTES) != text:
                files.make_private_directory(self.plugin.parent)
                files.replace(self.plugin, text.encode(), mode=0o700)
        except OSError as err:
            raise unwritable_error(self.root, err) from err


def stack_name(stack: Stack) -> str:
    """Return the stack's name. It includes the token, so that a new cluster never inherits old state."""
    token = stack.config.get("token", "")[:_TOKEN_LETTERS]
    return ".".join(part for part in (stack.name, stack.region, token) if part)


def plugin_script(notes: Path) -> str:
    """Return the script that the CLI starts as the `aws` plugin."""
    module = "cloudgpu.engine.plugin"
    command = shlex.join([sys.executable, "-P", "-m", module, "--notes", str(notes)])
    about = "# cloudgpu: the rehearsal cloud as a Pulumi plugin; it refuses every other endpoint"
    return f'#!/bin/sh\n{about}\nexec {command} "$@"\n'


def _project_file(name: str, program: Path) -> str:
    quoted = str(program).replace("\\", "\\\\").replace('"', '\\"')
    return f'name: {name}\nruntime: python\nmain: "{quoted}"\n'


def _write_first(path: Path, text: str, mode: int) -> None:
    """Write a file unless another process has already created it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    files.create(temporary, text.encode(), mode=mode)
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
