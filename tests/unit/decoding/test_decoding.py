"""Decode JSON into typed values, or raise an error that names the field."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest

from cloudgpu import bounds
from cloudgpu.decoding import AnyFloat, decode_as, describe_error, malformed_as
from cloudgpu.errors import StateError
from cloudgpu.files import parse_json


@dataclass(frozen=True)
class Disk:
    gib: int
    usd: Decimal = Decimal(0)


@dataclass(frozen=True)
class Everything:
    name: str
    state: Literal["up", "down"] = "up"
    whole: int = 0
    share: float = 0.5
    loss: AnyFloat = 0.0
    own: bool = False
    at: datetime | None = None
    day: date | None = None
    disks: tuple[Disk, ...] = ()
    pair: tuple[str, int] = ("", 0)
    tags: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    rate: Annotated[str, bounds.usd] = "0"
    ranks: Mapping[Annotated[str, bounds.parse_whole_number], tuple[int, ...]] = field(default_factory=dict)


def test_every_kind_of_value_is_decoded():
    stored = {
        "name": "lab",
        "state": "down",
        "whole": 5,
        "share": 1,
        "loss": math.inf,
        "own": True,
        "at": "2026-11-22T13:00:00+01:00",
        "day": "2026-11-22",
        "disks": [{"gib": 100, "usd": "1.50"}, {"gib": 1}],
        "pair": ["a", 1],
        "tags": {"a": [1, 2]},
        "more": {"x": [None, {}]},
        "written by a newer version": 1,
    }
    assert decode_as(Everything, stored) == Everything(
        name="lab",
        state="down",
        whole=5,
        share=1.0,
        loss=math.inf,
        own=True,
        at=datetime(2026, 11, 22, 12, tzinfo=UTC),
        day=date(2026, 11, 22),
        disks=(Disk(100, Decimal("1.50")), Disk(1)),
        pair=("a", 1),
        tags={"a": (1, 2)},
        more={"x": [None, {}]},
    )


def test_time_without_zone_is_utc():
    assert decode_as(datetime, "2026-11-22T12:00:00") == datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ([], "expected a mapping, got list"),
        ({}, "name is missing"),
        ({"name": 5}, "name: expected text, got 5"),
        ({"name": "x" * 100 + "\n", "own": 1}, "own: expected true or false, got 1"),
        ({"name": "", "state": "gone"}, "state: expected one of up, down, got 'gone'"),
        ({"name": "", "whole": True}, "whole: expected a whole number, got True"),
        ({"name": "", "whole": 10**400}, "whole: expected a whole number, got a number that is too large"),
        ({"name": "", "share": math.nan}, "share: expected a finite number, got nan"),
        ({"name": "", "share": True}, "share: expected a number, got True"),
        ({"name": "", "at": "9999-12-31T23:59:59-23:59"}, "at: expected a time"),
        ({"name": "", "at": 5}, "at: expected a time"),
        ({"name": "", "day": "2026-13-01"}, "day: expected a time from 2000 to 2099"),
        ({"name": "", "disks": [{"gib": 1}, {"gib": "1"}]}, "disks.1.gib: expected a whole number, got '1'"),
        ({"name": "", "disks": [{"gib": 1, "usd": "1E+999999999"}]}, "disks.0.usd: expected a number"),
        ({"name": "", "disks": [{"gib": 1, "usd": "0E-999999999"}]}, "disks.0.usd: expected a number"),
        ({"name": "", "disks": [{"gib": 1, "usd": "sNaN"}]}, "disks.0.usd: expected a number"),
        ({"name": "", "disks": "ab"}, "disks: expected a list, got 'ab'"),
        ({"name": "", "pair": ["a"]}, "pair: expected 2 values, got list"),
        ({"name": "", "tags": [["a", 1]]}, "tags: expected a mapping, got list"),
        ({"name": "", "rate": "NaN"}, "rate: expected a number of US dollars"),
        ({"name": "", "rate": 1.5}, "rate: expected text, got 1.5"),
        ({"name": "", "ranks": {"x": []}}, "ranks.x: expected a whole number, got x"),
    ],
)
def test_mismatched_value_error_names_field(stored: Any, told: str):
    with pytest.raises(ValueError, match=r".") as caught:
        decode_as(Everything, stored)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("kind", "stored", "why"),
    [
        (Literal[1], True, "expected one of 1, got True"),
        (Annotated[str, "not a check"], 1, "expected text, got 1"),
        (dict[str, int], {"x" * 10_000: "y" * 10_000}, "expected a whole number, got 'yyy"),
    ],
)
def test_value_outside_a_dataclass_is_decoded_too(kind: Any, stored: Any, why: str):
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        decode_as(kind, stored)
    assert len(str(caught.value)) < 200


def test_unsupported_type_raises_type_error():
    with pytest.raises(TypeError, match="cannot be read from JSON"):
        decode_as(complex, 1)


@pytest.mark.parametrize("text", ["[" * 100_000, "", "{", "9" * 5_000, b"\xff", '{"a": 1} b'])
def test_invalid_json_raises_value_error(text: str | bytes):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_malformed_document_raises_error_of_caller():
    with pytest.raises(StateError) as caught, malformed_as(lambda why: StateError(f"damaged: {why}")):
        json.loads('{"a": 1}')["b"]
    assert caught.value.message == "damaged: 'b' is missing"
    assert isinstance(caught.value.__cause__, KeyError)


def test_malformed_as_passes_other_errors_through():
    with pytest.raises(OSError, match="disk"), malformed_as(StateError):
        raise OSError("disk")


def test_error_description_is_short_and_printable():
    told = describe_error(ValueError("a\n\x1b[31m" + "b" * 500))
    assert told.isprintable()
    assert len(told) < 320
    assert describe_error(RecursionError()) == "RecursionError"
