"""Services in recipes: what may stand there, and what is said of what may not."""

import pytest

from cloudgpu.recipe.rules import broken
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.service import Endpoint


def recipe(service=None, *, launcher="service", beside=(), **more) -> Recipe:
    launch = {"with": launcher, "command": "serve --port {service.port}" if service else "train.py", "beside": beside}
    if service is not None:
        launch["service"] = service
    sections = {"schema": 1, "name": "web", "resources": {"gpu": "V100:1"}, "launch": launch, **more}
    return Recipe.model_validate(sections)


def problems(found: Recipe) -> list[str]:
    return [one.text for one in broken(found)]


BOARD = {"name": "board", "command": "tensorboard --port {service.port} --logdir {outputs}", "port": 6006}


def test_a_service_and_one_beside_ranks_are_fine():
    assert problems(recipe({"port": 8888, "token": "JUPYTER_TOKEN", "page": "/lab?token={token}"})) == []
    assert problems(recipe(launcher="torchrun", beside=[BOARD])) == []


def test_what_a_service_is_by_itself():
    assert Endpoint(port=8888).model_dump(mode="json") == {
        "port": 8888,
        "ready": {"http": None, "status": None, "within": "3m"},
        "page": "/",
        "token": None,
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (recipe(), "launch.service: with: service needs the port it answers on, for instance {port: 8888}"),
        (
            recipe({"port": 8888}, launcher="torchrun"),
            "launch.service: with is torchrun; expected with: service, or the service in launch.beside",
        ),
        (recipe({"port": 22}), "launch.service.port: 22 is the port of the SSH server; choose another"),
        (
            recipe({"port": 20500}),
            "launch.service.port: a run takes ports of 20000-31999 for itself; choose one outside",
        ),
        (recipe({"port": 6006}, beside=[BOARD]), "launch.beside[0].port: 6006 is the port of web; choose another"),
        (
            recipe(launcher="torchrun", beside=[BOARD, {**BOARD, "port": 6007}]),
            "launch.beside[1].name: another service is called board",
        ),
        (
            recipe({"port": 8888, "token": "T"}, environment={"env": {"T": "x"}}),
            "launch.service.token: T stands in environment.env too; its value is made for the run",
        ),
        (
            recipe({"port": 8888, "page": "/?t={token}"}),
            "launch.service.page: names {token}, and the service has none; add token: NAME_OF_A_VARIABLE",
        ),
        (
            recipe({"port": 8888, "page": "/{run}"}),
            "launch.service.page: expected no other braces than those of {token}",
        ),
        (
            recipe(launcher="torchrun", beside=[{**BOARD, "command": "tensorboard --port {service.prt}"}]),
            'launch.beside[0].command: unknown placeholder {service.prt}; did you mean "service.port"?',
        ),
    ],
)
def test_what_is_wrong_is_told(found, expected):
    assert expected in problems(found)
