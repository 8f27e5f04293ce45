"""Files of environment variables, and what is wrong with a line."""

from pathlib import Path

import pytest

from cloudgpu.cli.train_options import read_env_file
from cloudgpu.errors import UsageError

GOOD = r"""
# a comment
PLAIN=a b=c # a comment
  export EXPORTED = yes
EMPTY=
HASH=a#b
SINGLE='$HOME # \n "x"'   # a comment
DOUBLE="a \"b\" \\ \n\tc $HOME # d"
TWICE=1
TWICE=2
"""


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "my.env"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content", [GOOD.encode(), b"\xef\xbb\xbf" + GOOD.encode(), GOOD.replace("\n", "\r\n").encode()]
)
def test_values_are_read_with_their_quotes_comments_and_escapes(tmp_path: Path, content: bytes) -> None:
    assert read_env_file(written(tmp_path, content)) == {
        "PLAIN": "a b=c",
        "EXPORTED": "yes",
        "EMPTY": "",
        "HASH": "a#b",
        "SINGLE": r'$HOME # \n "x"',
        "DOUBLE": 'a "b" \\ \n\tc $HOME # d',
        "TWICE": "2",
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"A=1\nhf_s3cr3t\n", "my.env:2: expected NAME=VALUE"),
        (b"1A=hf_s3cr3t\n", "my.env:1: expected NAME=VALUE"),
        (b"A='hf_s3cr3t\n", "my.env:1: a quote is not closed, or text follows the closing quote"),
        (b'A="hf_s3cr3t\\"\n', "my.env:1: a quote is not closed, or text follows the closing quote"),
        (b'A="x" hf_s3cr3t\n', "my.env:1: a quote is not closed, or text follows the closing quote"),
        (b"A=\xff\n", "my.env is not UTF-8 text"),
    ],
)
def test_invalid_lines_are_named_by_number_and_not_repeated(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_env_file(written(tmp_path, content))
    assert caught.value.message == f"{tmp_path}/{said}"
    assert "hf_s3cr3t" not in caught.value.hint


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*my\.env: No such file or directory"):
        read_env_file(tmp_path / "my.env")
