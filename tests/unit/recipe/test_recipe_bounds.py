"""Values that cannot be sent to a node or are out of range are rejected on load, with file, line and field."""

import pytest

from cloudgpu.errors import RecipeError
from cloudgpu.recipe import loader
from cloudgpu.recipe.loader import resolve
from cloudgpu.recipe.matrix import Axis, combinations

WHOLE = """\
schema: 1
name: tiny
description: one sentence
resources:
  gpu: V100:8
environment:
  env:
    MODE: fast
  secrets: [TOKEN]
params:
  epochs: 3
  note: plain
launch:
  with: torchrun
  command: train.py --epochs {epochs} {note}
metrics:
  acc:
    pattern: 'acc=(?P<value>[0-9.]+)'
    better: higher
    reference: {value: 1, on: here, source: us}
outputs: [out]
budget: {expiry: 8h}
rehearsal:
  command: train.py --epochs 1
  params: {note: short}
"""
USD = "expected a number of US dollars, the only supported currency"
SHOWN = "recipes/x/recipe.yaml"
FIELDS = {
    "name": ("name: tiny", "name: {}", 2),
    "description": ("one sentence", "{}", 3),
    "resources.gpu": ("V100:8", "{}", 5),
    "environment.env.MODE": ("fast", "{}", 8),
    "environment.secrets[0]": ("[TOKEN]", "[{}]", 9),
    "params.note": ("note: plain", "note: {}", 12),
    "launch.command": ("train.py --epochs {{epochs}} {{note}}", "{}", 15),
    "metrics.acc.pattern": ("'acc=(?P<value>[0-9.]+)'", "{}", 18),
    "metrics.acc.reference.on": ("on: here", "on: {}", 20),
    "outputs[0]": ("[out]", "[{}]", 21),
    "budget.expiry": ("expiry: 8h", "expiry: {}", 22),
    "rehearsal.command": ("train.py --epochs 1", "{}", 24),
    "rehearsal.params.note": ("note: short", "note: {}", 25),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("char", "said"),
    [
        (r"\0", "the control character U+0000"),
        (r"\ud800", "half of a surrogate pair (U+D800)"),
        (r"\e", "the control character U+001B"),
        (r"\x7f", "the control character U+007F"),
    ],
)
def test_control_character_in_any_text_field_is_rejected(problems, field, char, said):
    old, new, line = FIELDS[field]
    old = old.replace("{{", "{").replace("}}", "}")
    assert old in WHOLE
    (found,) = problems(WHOLE.replace(old, new.format(f'"a{char}b"'), 1))
    assert found.startswith(f"{SHOWN}:{line}: {field}: character 2 is {said}")


@pytest.mark.parametrize("name", [r"a\0b", r"a\ud800", r"a\nb", r"a\eb"])
@pytest.mark.parametrize("section", ["  env:\n    ", "params:\n  "])
def test_control_character_in_a_field_name_is_rejected(problems, section, name):
    (found,) = problems(WHOLE.replace(section, f'{section}"{name}": x\n{section.rpartition(chr(10))[2]}', 1))
    assert "invalid name: character 2 is" in found
    assert found.isprintable()


def test_line_breaks_are_allowed_in_commands_values_and_descriptions(write):
    text = WHOLE.replace("one sentence", r'"one\nsentence"').replace("fast", r'"a\n\tb"')
    text = text.replace("note: plain", r'note: "a\tb"').replace(
        "train.py --epochs {epochs} {note}", r'"bash -c \"a\n\tb\""'
    )
    loaded = loader.load(write(text)).recipe
    assert loaded.environment.env == {"MODE": "a\n\tb"}
    assert loaded.launch.command == 'bash -c "a\n\tb"'


@pytest.mark.parametrize("field", ["outputs[0]", "resources.gpu", "name"])
def test_line_break_in_name_or_path_is_rejected(problems, field):
    old, new, line = FIELDS[field]
    (found,) = problems(WHOLE.replace(old, new.format(r'"a\nb"'), 1))
    assert found.startswith(f"{SHOWN}:{line}: {field}: character 2 is the control character U+000A")


@pytest.mark.parametrize("value", ["a\0b", "a\ud800b", "a\x1bb"])
@pytest.mark.parametrize("name", ["note", "launch.command", "environment.env.MODE", "outputs", "workdir"])
def test_control_character_in_set_or_matrix_value_is_rejected(write, name, value):
    loaded = loader.load(write(WHOLE))
    with pytest.raises(RecipeError) as caught:
        resolve(loaded, sets={name: value}, rehearsal=False)
    assert any("character 2 is" in line for line in (*caught.value.problems, caught.value.message))
    with pytest.raises(RecipeError):
        combinations(loaded, [Axis(name, ("fine", value))], {}, rehearsal=False)


def test_argument_longer_than_the_linux_limit_is_rejected(problems, write):
    long = "x" * 131_071
    assert loader.load(write(WHOLE.replace("note: plain", f"note: {long[:-1]}"))).recipe.params["note"] == long[:-1]
    (found,) = problems(WHOLE.replace("note: plain", f"note: {long}x"))
    assert found.startswith(f"{SHOWN}:12: params.note: 131,072 bytes; Linux allows at most 131,071")
    (found,) = problems(WHOLE.replace("{note}", "a{note}").replace("note: plain", f"note: {long}"))
    assert found.startswith(f"{SHOWN}:15: launch.command: an argument has 131,072 bytes")
    (found,) = problems(WHOLE.replace("MODE: fast", f"MODE: {long[5:]}a"))
    assert found.startswith(f"{SHOWN}:8: environment.env.MODE: 131,072 bytes including its name")


def test_total_argument_size_above_the_limit_is_rejected(problems):
    many = "".join(f"    V{number}: *long\n" for number in range(9))
    text = WHOLE.replace("    MODE: fast\n", f"    MODE: &long {'é' * 60_000}\n{many}")
    assert problems(text)[0].startswith(f"{SHOWN}:24: launch.command: command and environment.env take 1,")


def test_small_container_stack_lowers_the_argument_limit(problems):
    many = "".join(f"    V{number}: *long\n" for number in range(3))
    text = WHOLE.replace("    MODE: fast\n", f"    MODE: &long {'x' * 90_000}\n{many}")
    text = text.replace("environment:\n", "environment:\n  container: {image: 'a:b', stack_mib: 1}\n")
    assert all("the safe limit is 262,144" in line for line in problems(text))


def test_mpirun_env_larger_than_an_ssh_argument_is_rejected(problems):
    text = (
        WHOLE.replace("fast", "x" * 99_000)
        .replace("torchrun", "mpirun")
        .replace("gpu: V100:8", "gpu: V100:8\n  nodes: 2")
    )
    (found,) = problems(text)
    assert found.startswith(f"{SHOWN}:8: environment.env: mpirun passes env in one ssh argument")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema: 1", "schema: true", "1: schema: expected 1, got true"),
        ("schema: 1", "schema: 1.0", "1: schema: expected 1, got 1.0"),
        ("schema: 1", "schema: '1'", "1: schema: expected 1, got 1"),
        ("expiry: 8h", "expiry: 3650000d", "22: budget.expiry: expected a duration of at most 366d"),
        ("expiry: 8h", "expiry: 367d", "22: budget.expiry: expected a duration of at most 366d"),
        ("expiry: 8h", "expiry: ٨h", "22: budget.expiry: expected a duration with its unit"),
        (
            "expiry: 8h",
            "max_usd: true",
            f"22: budget.max_usd: {USD}, got True",
        ),
        (
            "expiry: 8h",
            "max_usd: 1e300",
            f"22: budget.max_usd: {USD}, got 1e+300",
        ),
        ("expiry: 8h", "max_usd: 1000000001", "22: budget.max_usd: expected an amount from 0 to 1,000,000,000"),
        (
            "expiry: 8h",
            "max_usd: .nan",
            f"22: budget.max_usd: {USD}, got nan",
        ),
        ("V100:8", "V100:8\n  disk: 99999999999999999GiB", "6: resources.disk: expected a size"),
        ("V100:8", "V100:8\n  disk: 65TiB", "6: resources.disk: expected at most 65536GiB, the largest gp3 volume"),
        ("V100:8", "V100:8\n  gpu_memory: 1025TiB", "6: resources.gpu_memory: expected a size of at most"),
        ("value: 1", "value: true", "20: metrics.acc.reference.value: expected a number, got True"),
        ("value: 1", "value: 1e300", "20: metrics.acc.reference.value: expected a number"),
        ("epochs: 3", "epochs: 99999999999999999999", "11: params.epochs: expected a whole number of at most"),
    ],
)
def test_out_of_range_or_mistyped_number_is_rejected(problems, old, new, said):
    assert old in WHOLE
    (found,) = problems(WHOLE.replace(old, new, 1))
    assert found.startswith(f"{SHOWN}:{said}")


def test_work_longer_than_100_years_is_rejected(problems):
    text = WHOLE.replace("    better: higher\n", "    better: higher\n    unit: img/s\n")
    text += "work: {metric: acc, amount: 999999999999}\n"
    (found,) = problems(text)
    assert "work.amount: at 1 img/s this takes more than 100 years" in found


@pytest.mark.parametrize("text", ["٣", "1_0", "+5", "²", "0x10", " 3"])
def test_set_parameter_accepts_only_ascii_digits(write, text):
    loaded = loader.load(write(WHOLE))
    with pytest.raises(RecipeError, match="expected a whole number"):
        resolve(loaded, sets={"epochs": text}, rehearsal=False)


@pytest.mark.parametrize("text", ["1_0", "+5", "0x10", "0o7"])
def test_set_field_accepts_only_ascii_digits(write, text):
    with pytest.raises(RecipeError) as caught:
        resolve(loader.load(write(WHOLE)), sets={"resources.nodes": text}, rehearsal=False)
    assert caught.value.problems == (f"resources.nodes: expected a whole number, got {text}",)
