"""Numbers, durations, times, sizes and amounts on the command line use ASCII digits and are range-checked."""

import pytest

from cloudgpu.cli.commands.rehearsal import read_prices, read_rows
from cloudgpu.cli.main import main
from cloudgpu.cli.options import integer_parser, option_seconds
from cloudgpu.errors import UsageError

DIGITS = ["٣", "1_0", "+5", "²", "0x10", "1e3", "9" * 5000]
NUMBERS = [
    ("recipe", "new", "tiny", "--nodes"),
    ("quota", "--offline", "--nodes"),
    ("gpus", "--count"),
    ("storage", "create", "sets", "--kind", "ebs", "--zone", "us-east-1a", "--size"),
    ("ssh", "lab", "--node"),
    ("tunnel", "lab", "80", "--node"),
    ("tunnel", "lab", "80", "--local"),
    ("logs", "--rank"),
    ("catalog", "revert"),
]
REFUSED = [
    ("extend", "lab", "--by", "999999999999d"),
    ("extend", "lab", "--by", "٢h"),
    ("extend", "lab", "--until", "0001-01-01T00:00+23:59"),
    ("extend", "lab", "--until", "9999-12-31T23:59:59-23:59"),
    ("extend", "lab", "--by", "2h", "--max-usd", "1e300"),
    ("extend", "lab", "--by", "2h", "--max-usd", "٣"),
    ("extend", "lab", "--by", "2h", "--max-usd", "1_000"),
    ("cost", "--since", "99999999999999d"),
    ("cost", "--since", "0001-01-01"),
    ("cost", "--since", "9999-12-31T23:59:59-23:59"),
    ("cost", "--since", "\u0667d"),
    ("storage", "create", "sets", "--kind", "ebs", "--zone", "us-east-1a", "--size", "99999999999999999", "--yes"),
    ("storage", "create", "sets", "--kind", "ebs", "--zone", "us-east-1a", "--size", "65537", "--yes"),
    ("storage", "create", "sets", "--kind", "lustre", "--zone", "us-east-1a", "--size", "1056000", "--yes"),
    ("rehearsal", "advance", "999999999999d"),
    ("rehearsal", "quota", "us-east-1/p/spot=99999999999999999999"),
    ("rehearsal", "capacity", "*/*/spot=²"),
    ("tunnel", "lab", "99999999999999999999"),
    ("tunnel", "lab", "٨٠"),
    ("gpus", "--min-memory", "99999999999999999999GB"),
    ("gpus", "--min-total-memory", "٣GB"),
    ("up", "tiny", "--retry-until-up", "999999999999d"),
]


@pytest.fixture
def refusal(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*args):
        code = main(list(args))
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert said.err.startswith("error: "), said.err
        return code, said.err

    return run


@pytest.mark.parametrize("command", NUMBERS, ids=" ".join)
@pytest.mark.parametrize("digits", DIGITS, ids=["arabic", "underscore", "sign", "square", "hex", "float", "long"])
def test_integer_options_accept_only_ascii_digits(refusal, command, digits):
    code, said = refusal(*command, digits)
    assert code == 2
    assert "expected a whole number" in said
    assert len(said) < 500


@pytest.mark.parametrize("command", REFUSED, ids=lambda words: " ".join(words)[:60])
def test_out_of_range_values_are_rejected_before_any_action(refusal, command):
    code, said = refusal(*command)
    assert code == 2
    assert "hint:" in said or "--help" in said


@pytest.mark.parametrize("command", [("up", "tiny", "--name"), ("plan",), ("down",), ("up", "tiny", "--set")])
def test_argument_that_is_not_utf8_is_rejected(refusal, command):
    code, said = refusal(*command, "note=caf\udce9")
    assert code == 2
    assert f"argument {len(command) + 1} is not UTF-8 text: note=caf\ufffd" in said


def test_out_of_range_error_states_the_allowed_range(refusal):
    assert "expected a whole number from 1 to 1000, got 1001" in refusal("quota", "--offline", "--nodes", "1001")[1]
    assert "expected a whole number from 1 to 65535, got 0" in refusal("tunnel", "lab", "80", "--local", "0")[1]


def test_valid_numbers_durations_limits_and_prices_are_parsed():
    assert integer_parser(1, 1000)("007") == 7
    assert integer_parser(1, 1000)(4) == 4
    assert option_seconds("1d12h", "--by") == 129600
    assert option_seconds("", "--by") == 0
    assert read_rows(["*/*/spot=2"]) == {"*/*/spot": 2}
    assert read_prices(["us-east-1/p3dn.24xlarge/on-demand=29.5"]) == {"us-east-1/p3dn.24xlarge/on-demand": "29.5"}
    with pytest.raises(UsageError, match="REGION/TYPE/MARKET=USD"):
        read_prices([f"us-east-1/p3dn.24xlarge/on-demand={'9' * 10}"])
