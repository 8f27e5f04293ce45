"""Secrets in output are replaced by as many asterisks, wherever a piece of output begins and ends."""

import base64
import json
import re
import shlex
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudgpu.node.agent.masking import Mask

TOKEN = "hf_s3cr3t"


@pytest.mark.parametrize(
    ("secrets", "text", "masked"),
    [
        ([TOKEN], f"a {TOKEN} b {TOKEN}\n", "a ********* b *********\n"),
        (["first line\nsecond line\r\n"], "second line, first line, first\n", "***********, **********, first\n"),
        (["abcdef", "defghi"], "abcdefghi", "*********"),
        (["aXaXa"], "aXaXaXa", "*******"),
        (["grün"], "ein grün", "ein *****"),
        (["abc", "", "\n"], "abc \n", "abc \n"),
        ([], "abcd", "abcd"),
    ],
)
def test_secrets_are_masked_and_the_length_stays(secrets: list[str], text: str, masked: str) -> None:
    assert Mask(secrets)(text.encode()).decode() == masked
    assert len(masked.encode()) == len(text.encode())


@given(
    st.lists(st.sampled_from([TOKEN, "hf_", "s3cr3t", "\n", "x"]), max_size=12), st.integers(0, 60), st.integers(0, 60)
)
def test_a_piece_of_output_is_masked_as_the_whole_output_is(pieces: list[str], start: int, size: int) -> None:
    mask, data = Mask([TOKEN]), "".join(pieces).encode()
    end = start + size
    piece = mask.between(data[max(0, start - mask.reach) : start], data[start:end], data[end : end + mask.reach])
    assert piece == mask(data)[start:end]


def lower(quoted: str) -> str:
    return re.sub("%..", lambda code: code[0].lower(), quoted)


def escape_all(text: str) -> str:
    units = text.encode("utf-16-be")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def in_base64(encode: Callable[[bytes], bytes], strip: str = "") -> Callable[[str], str]:
    return lambda text: encode(text.encode()).decode().rstrip(strip or None)


ENCODINGS: dict[str, Callable[[str], str]] = {
    "percent": quote,
    "percent, lower case": lambda text: lower(quote(text)),
    "percent, no safe characters": lambda text: quote(text, safe=""),
    "percent, no safe characters, lower case": lambda text: lower(quote(text, safe="")),
    "encodeURIComponent": lambda text: quote(text, safe="!'()*~"),
    "form": quote_plus,
    "form, lower case": lambda text: lower(quote_plus(text)),
    "percent, every byte": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON, not ASCII": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "JSON of PHP": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "JSON of Go": lambda text: re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text)[1:-1]),
    "JSON, every character": escape_all,
    "JSON, every character, upper case": lambda text: escape_all(text).upper().replace("\\U", "\\u"),
    "base64": in_base64(base64.b64encode),
    "base64, no padding": in_base64(base64.b64encode, "="),
    "base64url": in_base64(base64.urlsafe_b64encode),
    "base64url, no padding": in_base64(base64.urlsafe_b64encode, "="),
    "hexadecimal": lambda text: text.encode().hex(),
    "shell": lambda text: shlex.quote(text).removeprefix("'").removesuffix("'"),
    "shell, backslashes": lambda text: re.sub(r"([^\w.-])", r"\\\1", text, flags=re.ASCII),
    "Python": lambda text: repr(text)[1:-1],
    "Python, ASCII": lambda text: ascii(text)[1:-1],
    "Python bytes": lambda text: repr(text.encode())[2:-1],
}
SECRETS = (
    *(TOKEN, "abc/def+ghi=", "p w'd\"x", "a&b<c>d", "grün/日本 𝄞", 'back\\slash\\\\"n', "100%/%2F%25", "~a!b(c)*d"),
    '{"type": "account", "key": "-----BEGIN\\nab+/==\\n"}',
)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("secret", SECRETS)
def test_encoded_secrets_are_masked(secret: str, encoding: str) -> None:
    encoded = ENCODINGS[encoding](secret)
    masked = Mask([secret])(f"<{encoded}>".encode())
    assert masked == b"<" + b"*" * len(encoded.encode()) + b">", encoded


text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n"), min_size=4, max_size=24)


@settings(max_examples=300, deadline=None)
@example(secret="\\'\\'", encoding="Python", before="\\", after="\\")
@given(secret=text, encoding=st.sampled_from(list(ENCODINGS)), before=st.text(max_size=8), after=st.text(max_size=8))
def test_an_encoded_secret_does_not_survive_in_any_pieces(secret: str, encoding: str, before: str, after: str) -> None:
    line = secret.strip()
    mask = Mask([secret])
    if not mask.reach:
        return
    encoded = ENCODINGS[encoding](line).encode()
    data = before.encode(errors="replace") + encoded + after.encode(errors="replace")
    whole = mask(data)
    assert len(whole) == len(data)
    assert encoded not in whole or set(encoded) == {ord("*")}
    pieces = [
        mask.between(data[max(0, at - mask.reach) : at], data[at : at + 7], data[at + 7 : at + 7 + mask.reach])
        for at in range(0, len(data), 7)
    ]
    assert b"".join(pieces) == whole


def test_base64_of_a_longer_text_hides_the_secret_in_it() -> None:
    mask = Mask(["hf_a-rather-long-s3cr3t-token"])
    for user in ("", "a", "ab", "abc"):
        header = base64.b64encode(f"{user}:hf_a-rather-long-s3cr3t-token\n".encode())
        left = mask(header).strip(b"*")
        assert b"*" * 32 in left
        assert b"s3cr3t" not in base64.b64decode(left.replace(b"*", b"A") + b"==")


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("secret", ["s3cr3t!", "hunter2~", "p?ssw>rd9", "tok~n?4567", "0123456789ab"])
def test_base64_of_a_longer_text_hides_short_secrets_too(secret: str, encode: Callable[[bytes], bytes]) -> None:
    for user in ("u:", "us:", "use:"):
        header = encode(f"{user}{secret}\n".encode())
        left = Mask([secret])(header)
        shown = base64.urlsafe_b64decode(left.translate(bytes.maketrans(b"+/*", b"-_A")) + b"==")
        assert secret[2:-2] not in shown.decode("latin-1")
        assert left.count(b"*") >= len(secret)


def test_base64_in_lines_is_masked() -> None:
    secret = "\n".join(f"line {number} of a key" for number in range(20))
    for length in (64, 76):
        encoded = base64.b64encode(secret.encode()).decode()
        rows = [encoded[at : at + length] for at in range(0, len(encoded), length)]
        masked = Mask([secret])("\n".join(rows).encode()).decode().split("\n")
        assert all(set(row) == {"*"} for row in masked if len(row) >= 8)


@pytest.mark.parametrize(
    ("secret", "data"),
    [
        ('{\\"a\\": \\"b\\"}' * 40, b'\\\\\\"' * 20_000),
        ('{\\"a\\": \\"b\\"}' * 40, ('{\\\\"a\\\\": \\\\"b\\\\"}' * 39).encode() * 20),
        ("%25" * 100, b"%25" * 20_000),
        ("\\" * 200 + "x", b"\\" * 20_000),
        ("' \"" * 200, b"'\"'\"' \"" * 5_000),
    ],
)
def test_output_that_almost_contains_a_secret_takes_little_time(secret: str, data: bytes) -> None:
    mask = Mask([secret])
    began = time.process_time()
    assert len(mask(data)) == len(data)
    assert time.process_time() - began < 5


def test_a_secret_of_many_lines_takes_little_time() -> None:
    secret = "\n".join(f"line {number:05d} + {'x' * 64}/" for number in range(5000))
    began = time.process_time()
    mask = Mask([secret])
    assert set(mask(secret.split("\n")[4999].encode())) == {ord("*")}
    assert time.process_time() - began < 5
