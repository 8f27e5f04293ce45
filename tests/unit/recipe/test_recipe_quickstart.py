"""The recipe that every new user runs first."""

import csv
import gzip
import hashlib
from pathlib import Path

from cloudgpu.paths import bundled_folder
from cloudgpu.recipe import loader, template
from cloudgpu.recipe.loader import resolve

FOLDER = Path(__file__).parents[3] / "recipes" / "quickstart"
LOADED = loader.load(FOLDER / "recipe.yaml")


def test_quickstart_recipe_is_found_by_name(tmp_path):
    assert loader.find("quickstart", roots=(tmp_path, bundled_folder("recipes"))) == FOLDER / "recipe.yaml"


def test_manifest_lists_exactly_the_data_files():
    lines = (FOLDER / LOADED.recipe.data[0].manifest).read_text().splitlines()
    listed = dict(reversed(line.split("  ")) for line in lines)
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (FOLDER / "data").iterdir()}
    assert listed == there
    assert "CC BY 4.0" in (FOLDER / "data" / "ATTRIBUTION.md").read_text()


def test_data_has_1797_rows_of_64_pixels_and_a_label():
    with gzip.open(FOLDER / "data" / "digits.csv.gz", "rt", newline="") as file:
        rows = [[int(value) for value in row] for row in csv.reader(file)]
    assert len(rows) == 1797
    assert {len(row) for row in rows} == {65}
    assert {row[-1] for row in rows} == set(range(10))
    assert 0 <= min(map(min, rows)) <= max(map(max, rows)) == 16


def test_command_uses_only_options_of_the_training_script():
    recipe = resolve(LOADED, sets={}, rehearsal=True)
    values = {**recipe.params, "data.digits": "/data/digits", "run": "r", "outputs": "/o", "checkpoint": "/c"}
    argv = template.argv(recipe.launch.command, values)
    assert argv[0] == "train.py"
    assert (FOLDER / argv[0]).is_file()
    script = (FOLDER / "train.py").read_text()
    assert [option for option in argv[1::2] if f'"{option}"' not in script] == []


def test_quickstart_requires_v100_compatible_torch_and_95_percent_accuracy():
    assert LOADED.recipe.environment.python.requirements == ("torch>=2.6,<2.11",)
    assert LOADED.recipe.metrics["accuracy"].at_least == 0.95
    assert LOADED.recipe.rehearsal.objects == {"s3://cloudgpu-quickstart/digits/": "data/"}
