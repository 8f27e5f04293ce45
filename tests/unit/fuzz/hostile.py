"""Hypothesis strategies for untrusted data: valid documents with hostile parts, and random bytes.

An example is always `bytes`, `str` or a JSON value, so that a failure can be written to a file and replayed.
"""

import copy
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

DEEP = "@deep@"
"""Stands for nested lists that no recursive reader survives; `json.dumps` could not write them either."""
DIGITS = "@digits@"
"""Stands for a bare number of more digits than Python converts."""
_SPLICED = {f'"{DEEP}"': "[" * 20_000 + "]" * 20_000, f'"{DIGITS}"': "9" * 5_000}

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1 << 31, 1 << 63, -(1 << 63) - 1, 10**400, -(10**400)),
    *(0.5, -0.0, 1e308, 5e-324, math.nan, math.inf, -math.inf),
    *([], {}, [[]], [{}], {"": None}, [None], [0, 0], {"\ud800": "\ud800"}, [[[[[[[[]]]]]]]]),
    *("", " ", "\n", "\0", "\ud800", "\udcff", "\u202e", "\u2028", "\x1b[2J", "\x85", "\ufeff", "\U0010ffff", "é" * 50),
    *("0", "-1", "1e999", "1E+999999999", "NaN", "sNaN", "Infinity", "-Infinity", "1_000", "0x10", "٣", "²", "1.5"),
    *("9" * 5_000, "x" * 20_000, "(" * 500, "a=" * 300, "{x}", "%s%n", "${HOME}", "$(true)", "`true`"),
    *("../../etc/passwd", "/", "/dev/null", "~", ".", "..", "a/b", "-rf", "http://", "http://[::1", "//\\"),
    *("2026-11-22", "2026-11-22T10:00:00", "2026-13-45T99:00:00Z", "2026-11-22T10:00:00Z", "0000-00-00T00:00:00Z"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59", "20261122T100000Z", "2026-W01-1"),
    *("none", "null", "true", "i-0123456789abcdef0", "us-east-1", "us-east-1a", DEEP, DIGITS),
)
SNIPPETS: tuple[bytes, ...] = (
    *(b"\0", b"\n", b"\r", b"\r\n", b"\t", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xef\xbb\xbf", b"\x1b[31m", b"\x85"),
    *(b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b":", b",", b"=", b"#", b"%", b";", b"|", b"-", b"--", b"/", b" "),
    *(b"NaN", b"Infinity", b"1e999", b"9" * 5_000, b"-1", b"null", b"true", b"\\ud800", b"\\u0000", b"0x", b"1_0"),
    *(b"[" * 20_000, b"{" * 300, b"(" * 300, b"a" * 20_000, b"\xd9\xa3", b"\xc2\xb2", b"\xe2\x80\xae"),
    *(b"&a [*a, *a]", b"*a", b"<<: *a\n", b"!!python/object:os.system x", b"%YAML 1.1\n---\n", b"? ", b"!!binary x"),
    b"&a [x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c]\n",
)
_STEPS = 3
_ENCODINGS = ("utf-16", "utf-8-sig", "utf-32", "utf-7")

Path = tuple[str | int, ...]


def values(*samples: Any) -> st.SearchStrategy[Any]:
    """Return JSON values: a sample with up to three of its parts replaced, removed, added or swapped."""
    return _values(samples)


def texts(*samples: Any, width: int | None = None) -> st.SearchStrategy[str]:
    """Return JSON text of `values`, or such text with hostile characters in it."""
    return _texts(samples, width)


def files(*samples: Any) -> st.SearchStrategy[bytes]:
    """Return the bytes of JSON files: hostile values, hostile text, unusual encodings and random bytes."""
    return _files(_texts(samples, None))


def lines(*samples: Any) -> st.SearchStrategy[bytes]:
    """Return the bytes of files with one JSON value per line."""
    return _files(_lines(samples))


def spoiled(*samples: str | bytes) -> st.SearchStrategy[bytes]:
    """Return the samples with bytes removed, doubled, replaced and inserted, and random bytes."""
    known = tuple(one.encode() if isinstance(one, str) else one for one in samples)
    return _spoiled(known)


def spoiled_text(*samples: str) -> st.SearchStrategy[str]:
    """Return the output of `spoiled` as text; bytes that are not UTF-8 become lone surrogates."""
    return spoiled(*samples).map(lambda data: data.decode("utf-8", "surrogateescape"))


def words(*samples: str) -> st.SearchStrategy[str]:
    """Return short texts for a parser of one word: the samples, hostile texts, spoiled samples and any text."""
    hostile = [one for one in HOSTILE if isinstance(one, str) and one not in (DEEP, DIGITS)]
    return st.one_of(st.sampled_from([*samples, *hostile]), spoiled_text(*samples), st.text(max_size=30))


@st.composite
def _values(draw: Callable[..., Any], samples: Sequence[Any]) -> Any:
    value = copy.deepcopy(samples[draw(st.integers(0, len(samples) - 1))])
    for _ in range(draw(st.integers(0, _STEPS))):
        value = _changed(draw, value)
    return value


@st.composite
def _texts(draw: Callable[..., Any], samples: Sequence[Any], width: int | None) -> str:
    value = draw(_values(samples))
    text = json.dumps(value, indent=width, ensure_ascii=draw(st.integers(0, 3)) > 0)
    for mark, spliced in _SPLICED.items():
        if mark in text:
            text = text.replace(mark, spliced)
    if draw(st.integers(0, 5)) == 0:
        data = _spoil(draw, text.encode("utf-8", "surrogatepass"))
        return data.decode("utf-8", "surrogateescape")
    return text


@st.composite
def _lines(draw: Callable[..., Any], samples: Sequence[Any]) -> str:
    count = draw(st.integers(0, 4))
    end = draw(st.sampled_from(["\n", "\n", "\n", "", "\n\n", "\r\n"]))
    return "".join(draw(_texts(samples, None)) + end for _ in range(count))


@st.composite
def _files(draw: Callable[..., Any], content: st.SearchStrategy[str]) -> bytes:
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return draw(st.binary(max_size=60))
    text = draw(content)
    if kind == 1:
        return text.encode(draw(st.sampled_from(_ENCODINGS)), "replace")
    return text.encode("utf-8", "surrogatepass")


@st.composite
def _spoiled(draw: Callable[..., Any], samples: Sequence[bytes]) -> bytes:
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=80))
    data = samples[draw(st.integers(0, len(samples) - 1))]
    for _ in range(draw(st.integers(0, _STEPS))):
        data = _spoil(draw, data)
    return data


def _changed(draw: Callable[..., Any], value: Any) -> Any:
    """Apply one change to one part of a JSON value."""
    places = list(_places(value, ()))
    place = places[draw(st.integers(0, len(places) - 1))]
    action = draw(st.integers(0, 9))
    hostile = copy.deepcopy(HOSTILE[draw(st.integers(0, len(HOSTILE) - 1))])
    if not place:
        return [value] if action == 0 else {"a": value} if action == 1 else hostile
    parent = _at(value, place[:-1])
    key = place[-1]
    if action == 0:
        del parent[key]
    elif action == 1:
        parent[key] = [parent[key]]
    elif action == 2 and isinstance(parent, dict):
        parent[hostile if isinstance(hostile, str) else str(hostile)[:50]] = parent.pop(key)
    elif action == 2:
        parent.extend(copy.deepcopy(parent[:100]))
    elif action == 3:
        other = places[draw(st.integers(0, len(places) - 1))]
        parent[key] = copy.deepcopy(_at(value, other))
    else:
        parent[key] = hostile
    return value


def _places(value: Any, at: Path) -> Any:
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:50]):
            yield from _places(inner, (*at, index))


def _at(value: Any, place: Path) -> Any:
    for key in place:
        value = value[key]
    return value


def _spoil(draw: Callable[..., Any], data: bytes) -> bytes:
    """Apply one change to some bytes."""
    first = draw(st.integers(0, len(data)))
    action = draw(st.integers(0, 5))
    if action == 0:
        return data[:first]
    snippet = SNIPPETS[draw(st.integers(0, len(SNIPPETS) - 1))]
    last = min(len(data), first + draw(st.integers(0, 40)))
    if action == 1:
        return data[:first] + data[last:]
    if action == 2:
        return data[:last] + data[first:]
    if action == 3:
        return data[:first] + snippet + data[last:]
    return data[:first] + snippet + data[first:]
