"""Services in recipes: valid settings, and the problems reported for invalid ones."""

import pytest

from cloudgpu.recipe.launch_sections import Endpoint
from cloudgpu.recipe.rules import rule_problems
from cloudgpu.recipe.schema import Recipe


def recipe(service=None, *, launcher="service", beside=(), **more) -> Recipe:
    launch = {"with": launcher, "command": "serve --port {service.port}" if service else "train.py", "beside": beside}
    if service is not None:
        launch["service"] = service
    sections = {"schema": 1, "name": "web", "resources": {"gpu": "V100:1"}, "launch": launch, **more}
    return Recipe.model_validate(sections)


def problems(found: Recipe) -> list[str]:
    return [one.text for one in rule_problems(found)]


BOARD = {"name": "board", "command": "tensorboard --port {service.port} --logdir {outputs}", "port": 6006}


def test_service_and_side_service_recipes_are_valid():
    assert problems(recipe({"port": 8888, "token": "JUPYTER_TOKEN", "page": "/lab?token={token}"})) == []
    assert problems(recipe(launcher="torchrun", beside=[BOARD])) == []


def test_service_defaults_are_filled_in():
    assert Endpoint(port=8888).model_dump(mode="json") == {
        "port": 8888,
        "ready": {"http": None, "status": None, "within": "3m"},
        "page": "/",
        "token": None,
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            recipe(),
            "launch.service: required by the service launcher; set the service's port, for example {port: 8888}",
        ),
        (
            recipe({"port": 8888}, launcher="torchrun"),
            "launch.service: applies only to the service launcher, not to torchrun; move the service to launch.beside",
        ),
        (recipe({"port": 22}), "launch.service.port: port 22 is already used by the SSH server; choose another port"),
        (
            recipe({"port": 20500}),
            "launch.service.port: ports 20000-31999 are reserved for cloudgpu; choose another port",
        ),
        (
            recipe({"port": 6006}, beside=[BOARD]),
            "launch.beside[0].port: port 6006 is already used by web; choose another port",
        ),
        (
            recipe(launcher="torchrun", beside=[BOARD, {**BOARD, "port": 6007}]),
            "launch.beside[1].name: another service is already named board",
        ),
        (
            recipe({"port": 8888, "token": "T"}, environment={"env": {"T": "x"}}),
            "launch.service.token: T is also in environment.env; remove it there",
        ),
        (
            recipe({"port": 8888, "page": "/?t={token}"}),
            "launch.service.page: uses {token}, but the service has no token; add token: VARIABLE_NAME",
        ),
        (
            recipe({"port": 8888, "page": "/{run}"}),
            "launch.service.page: the only placeholder allowed here is {token}",
        ),
        (
            recipe(launcher="torchrun", beside=[{**BOARD, "command": "tensorboard --port {service.prt}"}]),
            'launch.beside[0].command: unknown placeholder {service.prt}; did you mean "service.port"?',
        ),
    ],
)
def test_invalid_service_settings_are_reported(found, expected):
    assert expected in problems(found)
