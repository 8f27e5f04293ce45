"""Access keys of a rehearsal cloud: random for each state home, so that no other user or web page can call its API."""

import base64
import os
import re
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import NewerFormatError, StateError
from cloudgpu.paths import unwritable_error
from cloudgpu.rehearsal.layout import DocumentFormat
from cloudgpu.rehearsal.state.durable import write_durably
from cloudgpu.text import command

_FORMAT: Final = DocumentFormat("access keys")
_KEY_ID = re.compile(r"AKIA[A-Z2-7]{16}")


@dataclass(frozen=True)
class AccessKey:
    """An access key, whose id and secret have AWS's format."""

    access_key_id: str
    secret_access_key: str = field(repr=False)


@dataclass(frozen=True)
class Keyring:
    """One state home's access keys: `caller` is the user's, and nodes get `role` from the metadata service."""

    caller: AccessKey
    role: AccessKey

    def secret_of(self, access_key_id: str) -> str | None:
        """Return the secret of this access key id, or None if the id is unknown."""
        for key in (self.caller, self.role):
            if secrets.compare_digest(key.access_key_id.encode(), access_key_id.encode()):
                return key.secret_access_key
        return None


def load_or_create(path: Path) -> Keyring:
    """Read the state home's keys, creating them if necessary. Concurrent callers get the same keys."""
    if not os.path.lexists(path):
        _create(path)
    return load(path)


def load(path: Path) -> Keyring:
    """Read the state home's keys."""
    try:
        row = _FORMAT.read(path)
        return Keyring(_key(row["caller"]), _key(row["role"]))
    except (OSError, *MALFORMED) as err:
        message = f"cannot read the rehearsal keys in {path}: {err}"
        raise StateError(
            message, hint=f"reset the rehearsal cloud: {command('cloudgpu', 'rehearsal', 'reset')}"
        ) from err


def repair(path: Path, known_id: str) -> Keyring:
    """Read the state home's keys, replacing them if they are damaged.

    The caller must make sure that no server is running, because a running server would keep using its old keys. Cluster
    records identify this cloud by the user's access key id, so the new key keeps `known_id` if it is a valid ID.

    Args:
        path: The key file.
        known_id: The user's access key id according to the cluster records, or an empty string.
    """
    try:
        return load_or_create(path)
    except NewerFormatError:
        raise  # these keys are not damaged
    except StateError:
        caller = _random_key()
        if _KEY_ID.fullmatch(known_id):
            caller = AccessKey(known_id, caller.secret_access_key)
        keyring = Keyring(caller, _random_key())
        write(path, keyring)
        return keyring


def _create(path: Path) -> None:
    """Write the keys to a temporary file and hard-link it, so that the first of several concurrent callers wins."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    write(draft, Keyring(_random_key(), _random_key()))
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError as err:
        raise unwritable_error(path, err) from err
    finally:
        draft.unlink(missing_ok=True)


def _key(row: dict[str, str]) -> AccessKey:
    key = AccessKey(**row)
    if not all(isinstance(text, str) and text for text in asdict(key).values()):
        message = "an access key's id or secret is empty or not a string"
        raise ValueError(message)
    return key


def write(path: Path, keyring: Keyring) -> None:
    """Write the keys, replacing an existing file."""
    write_durably(path, _FORMAT.encode(asdict(keyring)))


def _random_key() -> AccessKey:
    letters = base64.b32encode(secrets.token_bytes(10)).decode()
    return AccessKey(f"AKIA{letters}", base64.b64encode(secrets.token_bytes(30)).decode())
