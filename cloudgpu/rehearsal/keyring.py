"""Access keys of one rehearsal cloud: random per home, so that no other user or web page can launch anything."""

import base64
import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cloudgpu.errors import StateError
from cloudgpu.paths import unwritable
from cloudgpu.rehearsal.durable import write_durably


@dataclass(frozen=True)
class AccessKey:
    """An access key id and its secret, shaped like AWS's own."""

    access_key_id: str
    secret_access_key: str = field(repr=False)


@dataclass(frozen=True)
class Keyring:
    """`caller` is the user's key; `role` is what the metadata service of nodes hands out."""

    caller: AccessKey
    role: AccessKey

    def secret_of(self, access_key_id: str) -> str | None:
        """The secret that belongs to this id, or None for a stranger's."""
        for key in (self.caller, self.role):
            if secrets.compare_digest(key.access_key_id.encode(), access_key_id.encode()):
                return key.secret_access_key
        return None


def load_or_create(path: Path) -> Keyring:
    """Read the home's keys, or make them; two processes that race agree on one set.

    Raises:
        StateError: The file cannot be written, or is damaged.
    """
    if not path.exists():
        _create(path)
    return load(path)


def load(path: Path) -> Keyring:
    """Read the home's keys.

    Raises:
        StateError: The file is absent or damaged.
    """
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        return Keyring(AccessKey(**row["caller"]), AccessKey(**row["role"]))
    except (OSError, ValueError, KeyError, TypeError) as err:
        message = f"cannot read the rehearsal keys in {path}"
        raise StateError(message, hint="run `cloudgpu rehearsal stop`, then delete that file") from err


def _create(path: Path) -> None:
    """Write a complete file under another name and link it: the loser of a race keeps the winner's keys."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    keyring = Keyring(_random_key(), _random_key())
    write_durably(draft, json.dumps({"caller": asdict(keyring.caller), "role": asdict(keyring.role)}).encode())
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError as err:
        raise unwritable(path, err) from err
    finally:
        draft.unlink(missing_ok=True)


def _random_key() -> AccessKey:
    letters = base64.b32encode(secrets.token_bytes(10)).decode()
    return AccessKey(f"AKIA{letters}", base64.b64encode(secrets.token_bytes(30)).decode())
