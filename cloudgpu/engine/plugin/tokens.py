"""Client tokens for the resources that the plugin creates. A repeated request gets the same token.

A new attempt after a rejection or deletion needs a new token, because AWS responds to a repeated token with the
earlier response. The number of finished attempts is stored in one small file per resource, because a plugin process
exists only during one command.
"""

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cloudgpu import files
from cloudgpu.cloud import TOKEN_TAG
from cloudgpu.engine.direct.operation_choice import client_token
from cloudgpu.engine.redaction import Redactor
from cloudgpu.paths import unwritable_error

_SALT: Final = "salt"


class Tokens:
    """The client tokens of all stacks whose plugins share a notes directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def token(self, urn: str, type_token: str, region: str, inputs: Mapping[str, Any]) -> str:
        """Return the client token of a resource with these checked inputs."""
        digest = Redactor(self._salt()).digest([type_token, region, dict(inputs)])
        return client_token(_cluster_token(urn, inputs), urn, digest, self._finished_attempts(urn))

    def end(self, urn: str) -> None:
        """Record that the resource's current attempt is finished, so that its next request gets a new token."""
        self._write(self._note(urn), str(self._finished_attempts(urn) + 1))

    def _finished_attempts(self, urn: str) -> int:
        try:
            return int(files.read_text(self._note(urn), files.SETTINGS_BYTES))
        except (FileNotFoundError, ValueError):
            return 0
        except OSError as err:
            raise unwritable_error(self._directory, err) from err

    def _note(self, urn: str) -> Path:
        return self._directory / hashlib.sha256(urn.encode()).hexdigest()[:40]

    def _salt(self) -> str:
        path = self._directory / _SALT
        try:
            return files.read_text(path, files.SETTINGS_BYTES)
        except FileNotFoundError:
            self._write_once(path, secrets.token_hex(16))
            return files.read_text(path, files.SETTINGS_BYTES)
        except OSError as err:
            raise unwritable_error(self._directory, err) from err

    def _write_once(self, path: Path, text: str) -> None:
        """Write a file unless it exists, so that resources created concurrently all use the same salt."""
        temporary = self._temporary(path)
        try:
            self._put(temporary, text)
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError as err:
            raise unwritable_error(self._directory, err) from err
        finally:
            temporary.unlink(missing_ok=True)

    def _write(self, path: Path, text: str) -> None:
        temporary = self._temporary(path)
        try:
            self._put(temporary, text)
            temporary.replace(path)
        except OSError as err:
            raise unwritable_error(self._directory, err) from err

    def _put(self, path: Path, text: str) -> None:
        files.make_private_directory(self._directory)
        files.create(path, text.encode())

    def _temporary(self, path: Path) -> Path:
        return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _cluster_token(urn: str, inputs: Mapping[str, Any]) -> str:
    """Return the cluster's token from the tags, or the stack's name for resources without tags."""
    tags = inputs.get("tags") or {}
    return str(tags.get(TOKEN_TAG) or urn.split("::", 1)[0])
