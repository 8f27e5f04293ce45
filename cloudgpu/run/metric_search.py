"""Search rank output for metrics in a separate process, which the kernel ends if a pattern takes too long.

A pattern such as `(?:[0-9]+,?)+%` takes time exponential in the length of a line that it almost matches, and nothing
can interrupt `re` within a process. The search process runs this file, without the rest of cloudgpu. Before each
search, it notes the line and the pattern in memory that it shares with its parent, and it limits its own processor
time with a timer, so that it ends even if its parent was killed.
"""

import contextlib
import json
import mmap
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

_LIMIT_S: Final = 0.5
"""Processor time, in seconds, for one block of output. A block of one MiB usually takes less than 0.1 s."""
_WALL_S: Final = 60.0
"""Time, in seconds, after which a search process without a response is ended, regardless of its processor time."""
_LONGEST_LINE: Final = 16384
"""Maximum number of characters searched per line."""
_HEADER: Final = struct.Struct(">II")
_POSITION: Final = struct.Struct("=ii")
_WHOLE_BLOCK: Final = -1
_NOT_BY_TEXT: Final = re.compile(r"\\[AZzDWB]|\[\^|\(\?(?!P[<=]|:)|[*+?}]\+")
"""Syntax with which a search of the whole text could miss a line or take too long."""
_ESCAPE_IN_PATTERN: Final = re.compile(r"\x1b|\\(?:x1b|u001b|033)", re.IGNORECASE)
"""Pattern of the patterns that match escape sequences themselves."""
_ESCAPE_SEQUENCE: Final = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colors, cursor movement, erasing
    "|(?:\x1b[\\]PX^_k]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"  # OSC, DCS, titles, hyperlinks
    "|\x1b[ -/]*[0-~]"  # two-character sequences, character sets
)
_CONTROLS: Final = re.compile("[\x00-\x07\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")
"""Control characters that a terminal does not show, except tabs, backspaces and line separators."""


@dataclass(frozen=True)
class Stopped:
    """A search that was ended.

    Attributes:
        line: Index of the line that was searched; negative for the search of the whole block.
        pattern: Index of the pattern.
    """

    line: int
    pattern: int


@dataclass(frozen=True)
class Query:
    """The patterns for a block of output.

    Attributes:
        patterns: Patterns by index.
        without: For some patterns, the indices of lines that they are not matched against.
        by_line: Patterns with which the block is not searched as a whole, to exclude it at once.
    """

    patterns: Mapping[int, str]
    without: Mapping[int, Sequence[int]]
    by_line: Sequence[int] = ()


class SearchProcess:
    """The process that runs searches, started by the first search and again after it was ended.

    Args:
        limit_s: Processor time, in seconds, for one block of output.
    """

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._position: mmap.mmap | None = None

    def search(self, query: Query, text: str) -> "list[tuple[int, float]] | Stopped":
        """Return the index of the pattern and the value for every match, in the order of the lines.

        If the process was ended, return where.
        """
        process = self._process if self._process is not None else self._start()
        position = self._position
        if position is not None:
            position[:] = _POSITION.pack(_WHOLE_BLOCK, min(query.patterns, default=0))
        try:
            return _exchange(process, query, text)
        except (OSError, ValueError):
            line, pattern = _POSITION.unpack(bytes(position or b"")) if position is not None else (_WHOLE_BLOCK, 0)
            self.close()
            return Stopped(line, pattern)
        except BaseException:
            self.close()  # the next query must not read the response to this one
            raise

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        with tempfile.TemporaryFile() as shared:
            shared.truncate(_POSITION.size)
            self._position = mmap.mmap(shared.fileno(), _POSITION.size)
            self._process = process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(shared.fileno()), str(self._limit_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(shared.fileno(),),
                start_new_session=True,  # Ctrl-C in the terminal is for cloudgpu alone
            )
        weakref.finalize(self, _end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # input that was never read
                pipe.close()


def _exchange(process: subprocess.Popen[bytes], query: Query, text: str) -> list[tuple[int, float]]:
    """Send a query and return the response."""
    assert process.stdin is not None  # noqa: S101  # both are pipes
    assert process.stdout is not None  # noqa: S101
    question = json.dumps([dict(query.patterns), dict(query.without), list(query.by_line)]).encode()
    content = text.encode("utf-8", "surrogatepass")
    process.stdin.write(_HEADER.pack(len(question), len(content)) + question)
    process.stdin.write(content)
    process.stdin.flush()
    waiting = select.poll()
    waiting.register(process.stdout, select.POLLIN)
    if not waiting.poll(_WALL_S * 1000):
        raise TimeoutError
    return [(index, value) for index, value in json.loads(process.stdout.readline())]


def plain_text(line: str) -> str:
    """Return a line as a terminal shows it: without escape sequences and controls, and with backspaces applied."""
    if line.isprintable():
        return line
    line = _CONTROLS.sub("", _ESCAPE_SEQUENCE.sub("", line))
    if "\b" not in line:
        return line
    cells: list[str] = []
    cursor = 0
    for char in line:
        if char == "\b":
            cursor = max(0, cursor - 1)
            continue
        cells[cursor : cursor + 1] = [char]
        cursor += 1
    return "".join(cells)


def find_values(query: Query, text: str, note: mmap.mmap | bytearray) -> list[tuple[int, float]]:
    """Return the index of the pattern and the value for every match, in the order of the lines.

    `note` receives the position of each search before it starts.
    """
    raw: list[str] = []
    plain: list[str] = []
    whole, raw_whole = text, text
    if not text.replace("\n", "").replace("\t", "").isprintable():
        raw = text.splitlines()
        plain = [plain_text(line) for line in raw]
        whole, raw_whole = "\n".join(plain), "\n".join(raw)
    searches = []
    for index, pattern in query.patterns.items():
        on_escapes = _ESCAPE_IN_PATTERN.search(pattern) is not None
        _POSITION.pack_into(note, 0, _WHOLE_BLOCK, index)
        if index in query.by_line or may_match(pattern, raw_whole if on_escapes else whole):
            raw = raw or text.splitlines()
            searches.append((index, re.compile(pattern), raw if on_escapes else plain or raw))
    found = []
    for at in range(len(raw) if searches else 0):
        for index, compiled, lines in searches:
            if at in query.without.get(index, ()):
                continue
            _POSITION.pack_into(note, 0, at, index)
            value = _number(compiled.search(lines[at][:_LONGEST_LINE]))
            if value is not None:
                found.append((index, value))
    return found


def may_match(pattern: str, text: str) -> bool:
    """Return False if no line of the text matches the pattern. One search is faster than one for each line.

    With MULTILINE, a match of a line is also a possible match of the whole text, unless the pattern looks around, keeps
    the engine from backtracking, or refers to the ends of the text. Classes that match almost everything are excluded,
    because their matches could extend over the whole text and take time quadratic in its length.
    """
    return _NOT_BY_TEXT.search(pattern) is not None or re.search(pattern, text, re.MULTILINE) is not None


def _number(match: re.Match[str] | None) -> float | None:
    text = None if match is None else match["value"]
    if text is None:
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def serve(source: IO[bytes], out: IO[bytes], note: mmap.mmap, limit_s: float) -> None:
    """Answer queries until the parent closes the pipe. SIGPROF ends the process when a query takes too long."""
    while header := source.read(_HEADER.size):
        question_size, text_size = _HEADER.unpack(header)
        patterns, without, by_line = json.loads(source.read(question_size))
        text = source.read(text_size).decode("utf-8", "surrogatepass")
        query = Query(
            {int(index): pattern for index, pattern in patterns.items()},
            {int(index): lines for index, lines in without.items()},
            by_line,
        )
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        found = find_values(query, text, note)
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(json.dumps(found).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    with mmap.mmap(int(sys.argv[1]), _POSITION.size) as shared_position:
        serve(sys.stdin.buffer, sys.stdout.buffer, shared_position, float(sys.argv[2]))
