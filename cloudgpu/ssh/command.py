"""Remote commands. The type of each part determines its quoting and masking, so that secrets never reach a log."""

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Raw:
    """Shell text that is not quoted: operators, redirections, `$HOME`."""

    text: str


@dataclass(frozen=True)
class Secret:
    """A value that is quoted when sent and masked when shown."""

    value: str

    def __repr__(self) -> str:
        return "Secret('***')"


class RemoteCommand:
    """A remote command line. Strings are quoted, `Raw` is not, `Secret` is quoted when sent and masked elsewhere."""

    def __init__(self, *parts: str | Raw | Secret) -> None:
        self.parts = parts

    def wire(self) -> str:
        """Return the text that is sent to the node's shell."""
        return " ".join(_wire(part) for part in self.parts)

    def shown(self) -> str:
        """Return the command with secrets masked, for logs."""
        return " ".join("***" if isinstance(part, Secret) else _wire(part) for part in self.parts)

    __str__ = shown

    def __repr__(self) -> str:
        return f"RemoteCommand({self.shown()!r})"


def _wire(part: str | Raw | Secret) -> str:
    if isinstance(part, Raw):
        return part.text
    return shlex.quote(part.value if isinstance(part, Secret) else part)
