"""The files of the Pulumi engine: all of them lie in the state home, none in the user's own `~/.pulumi`."""

import os
import secrets
import shlex
import shutil
import sys
import threading
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.engine.base import Stack
from cloudgpu.engine.direct.project import read_project
from cloudgpu.paths import unwritable

_TOKEN_LETTERS: Final = 8


@dataclass(frozen=True)
class Layout:
    """The folder of one home and one target; AWS and the rehearsal cloud share no plugin and no state."""

    root: Path

    @property
    def pulumi_home(self) -> Path:
        """What the CLI gets as `PULUMI_HOME`."""
        return self.root / "home"

    @property
    def passphrase(self) -> Path:
        """What secrets in the state are encrypted with; the file is its owner's alone."""
        return self.root / "passphrase"

    @property
    def state(self) -> Path:
        """The file backend."""
        return self.root / "state"

    @property
    def notes(self) -> Path:
        """What the rehearsal plugin keeps from one command to the next."""
        return self.root / "notes"

    @property
    def plugin(self) -> Path:
        """The rehearsal plugin, where the CLI looks for one of the SDK's version."""
        name = f"resource-aws-v{version('pulumi-aws')}"
        return self.pulumi_home / "plugins" / name / "pulumi-resource-aws"

    def project(self, stack: Stack) -> Path:
        """The project folder of one stack: its settings must not be written beside the program."""
        return self.root / "projects" / stack_name(stack)

    def prepare(self, stack: Stack) -> Path:
        """Make what the CLI needs for this stack; returns its project folder.

        Raises:
            StateError: The home cannot be written.
            BadRequestError: The program is no Pulumi project.
        """
        project = read_project(stack.program)
        folder = self.project(stack)
        try:
            for one in (self.pulumi_home, self.state, self.notes, folder):
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.passphrase.exists():
                _write_first(self.passphrase, secrets.token_urlsafe(32), 0o600)
            # JSON is YAML; quoting a path in YAML by hand is not for us
            files.replace(folder / "Pulumi.yaml", _project_file(project.name, project.directory).encode())
        except OSError as err:
            raise unwritable(self.root, err) from err
        return folder

    def forget(self, stack: Stack) -> None:
        """Remove the project folder of a stack that is no more.

        Raises:
            StateError: It cannot be removed.
        """
        try:
            shutil.rmtree(self.project(stack))
        except FileNotFoundError:
            pass
        except OSError as err:
            raise unwritable(self.root, err) from err

    def install_plugin(self) -> None:
        """Write the rehearsal plugin: a script that runs this Python.

        Raises:
            StateError: The home cannot be written.
        """
        text = plugin_script(self.notes)
        try:
            if not self.plugin.exists() or files.read_text(self.plugin, files.SETTINGS_BYTES) != text:
                self.plugin.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                files.replace(self.plugin, text.encode(), mode=0o700)
        except OSError as err:
            raise unwritable(self.root, err) from err


def stack_name(stack: Stack) -> str:
    """One a cluster, region and life of that cluster: a new cluster of an old name starts with an empty state."""
    token = stack.config.get("token", "")[:_TOKEN_LETTERS]
    return ".".join(part for part in (stack.name, stack.region, token) if part)


def plugin_script(notes: Path) -> str:
    """The executable that the CLI starts as the `aws` plugin."""
    module = "cloudgpu.engine.plugin"
    command = shlex.join([sys.executable, "-P", "-m", module, "--notes", str(notes)])
    about = "# cloudgpu: the rehearsal cloud as a Pulumi plugin; it refuses every other endpoint"
    return f'#!/bin/sh\n{about}\nexec {command} "$@"\n'


def _project_file(name: str, program: Path) -> str:
    quoted = str(program).replace("\\", "\\\\").replace('"', '\\"')
    return f'name: {name}\nruntime: python\nmain: "{quoted}"\n'


def _write_first(path: Path, text: str, mode: int) -> None:
    """Write a file unless another process has done so meanwhile: then the other's stays."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    files.create(beside, text.encode(), mode=mode)
    try:
        path.hardlink_to(beside)
    except FileExistsError:
        pass
    finally:
        beside.unlink()
