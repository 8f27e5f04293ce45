"""Keep secrets out of journals, events and messages by replacing them with salted hashes or with `[secret]`."""

import hashlib
import hmac
import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cloudgpu.engine.direct.protobuf_values import Path, iter_scalars
from cloudgpu.node.agent.masking import Mask

MARK: Final = "cloudgpu:hidden:"
REDACTED: Final = "[secret]"


class Redactor:
    """Masks the known secrets of one engine run in values and messages. Thread-safe."""

    def __init__(self, salt: str, known: Iterable[str] = ()) -> None:
        self._salt = salt.encode()
        self._texts = {text for text in known if text}
        self._compiled: Mask | None = None
        self._lock = threading.Lock()

    def add_secrets(self, values: Mapping[str, Any], secret_paths: Iterable[Path]) -> None:
        """Add the strings at these paths to the known secrets, so that they are hidden wherever they occur."""
        for path in secret_paths:
            texts = {leaf for _, leaf in iter_scalars(_at(values, path)) if isinstance(leaf, str) and leaf}
            with self._lock:
                self._texts |= texts
                self._compiled = None

    def masked(self, values: Mapping[str, Any], secret_paths: Iterable[Path] = ()) -> dict[str, Any]:
        """Return a copy with secrets masked. Within a journal, equal values have equal masks."""
        hidden = frozenset(secret_paths)
        return {name: self._mask(value, (name,), hidden) for name, value in values.items()}

    def digest(self, value: object) -> str:
        """Return a salted hash of a JSON value."""
        text = json.dumps(value, sort_keys=True, default=str)
        return hmac.new(self._salt, text.encode(), hashlib.sha256).hexdigest()

    def redact_text(self, text: str) -> str:
        """Return a message with `[secret]` in place of known secrets, which a service may have echoed or encoded."""
        raw, redacted, done = text.encode(errors="surrogateescape"), bytearray(), 0
        for start, end in sorted(self._known_mask().found(raw)):
            if start >= done:
                redacted += raw[done:start] + REDACTED.encode()
            done = max(done, end)
        return (redacted + raw[done:]).decode(errors="surrogateescape")

    def _known_mask(self) -> Mask:
        """Return the mask of the known secrets. Very short ones occur by chance and would make messages unreadable."""
        with self._lock:
            if self._compiled is None:
                self._compiled = Mask(self._texts)
            return self._compiled

    def _mask(self, value: Any, path: Path, hidden: frozenset[Path]) -> Any:  # noqa: ANN401
        if path in hidden:
            return MARK + self.digest(value)
        if isinstance(value, Mapping):
            return {name: self._mask(inner, (*path, name), hidden) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._mask(inner, (*path, index), hidden) for index, inner in enumerate(value)]
        if isinstance(value, str) and self._contains_secret(value):
            return MARK + self.digest(value)
        return value

    def _contains_secret(self, text: str) -> bool:
        with self._lock:
            if text in self._texts or not self._texts:
                return text in self._texts
        return any(True for _ in self._known_mask().found(text.encode(errors="surrogateescape")))


def is_masked(value: object) -> bool:
    """Return True if the value, or a part of it, is a masked secret."""
    return any(isinstance(leaf, str) and leaf.startswith(MARK) for _, leaf in iter_scalars(value))


def masked_paths(values: Mapping[str, Any]) -> set[Path]:
    """Return the paths of masked secrets."""
    return {path for path, leaf in iter_scalars(values) if isinstance(leaf, str) and leaf.startswith(MARK)}


def redact_for_display(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with `[secret]` in place of masked secrets."""
    return {name: _hide(value) for name, value in values.items()}


def _hide(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, Mapping):
        return {name: _hide(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_hide(inner) for inner in value]
    return REDACTED if isinstance(value, str) and value.startswith(MARK) else value


def _at(values: Any, path: Path) -> Any:  # noqa: ANN401
    for part in path:
        values = values[part]
    return values
