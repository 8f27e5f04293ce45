"""Rules of services: where they answer, and what their commands and pages may name."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.recipe import template
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.reserved import RUN_PORTS
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.service import Endpoint

_SSH_PORT: Final = 22


def service_where_one_is_started(recipe: Recipe) -> Iterator[Problem]:
    """`launch.service` goes with `with: service`, and the other way round."""
    launch = recipe.launch
    if launch.launcher == "service" and launch.service is None:
        yield Problem(("launch", "service"), "with: service needs the port it answers on, for instance {port: 8888}")
    if launch.launcher != "service" and launch.service is not None:
        message = f"with is {launch.launcher}; expected with: service, or the service in launch.beside"
        yield Problem(("launch", "service"), message)


def services_apart(recipe: Recipe) -> Iterator[Problem]:
    """Every service has a name and a port of its own, and none that is taken already."""
    names: set[str] = set()
    ports: dict[int, str] = {_SSH_PORT: "the SSH server"}
    for index, one in enumerate(recipe.launch.beside):
        if one.name in names:
            yield Problem(("launch", "beside", index, "name"), f"another service is called {one.name}")
        names.add(one.name)
    for path, name, endpoint in endpoints(recipe):
        if endpoint.port in RUN_PORTS:
            message = f"a run takes ports of {RUN_PORTS.start}-{RUN_PORTS.stop - 1} for itself; choose one outside"
            yield Problem((*path, "port"), message)
        elif endpoint.port in ports:
            yield Problem((*path, "port"), f"{endpoint.port} is the port of {ports[endpoint.port]}; choose another")
        ports.setdefault(endpoint.port, name)


def services_reachable(recipe: Recipe) -> Iterator[Problem]:
    """Tokens are made, never given; pages name nothing but them; commands can be filled."""
    taken = {**dict.fromkeys(recipe.environment.env, "env"), **dict.fromkeys(recipe.environment.secrets, "secrets")}
    for path, _, endpoint in endpoints(recipe):
        if endpoint.token in taken:
            message = (
                f"{endpoint.token} stands in environment.{taken[endpoint.token]} too; its value is made for the run"
            )
            yield Problem((*path, "token"), message)
        if "{token}" in endpoint.page and endpoint.token is None:
            yield Problem((*path, "page"), "names {token}, and the service has none; add token: NAME_OF_A_VARIABLE")
        if set("{}") & set(endpoint.page.replace("{token}", "")):
            yield Problem((*path, "page"), "expected no other braces than those of {token}")
    names = (*template.placeholders(recipe), *template.SERVICE_NAMES)
    for index, one in enumerate(recipe.launch.beside):
        for message in template.problems(one.command, names):
            yield Problem(("launch", "beside", index, "command"), message)


def endpoints(recipe: Recipe) -> Iterator[tuple[FieldPath, str, Endpoint]]:
    """Every service of a recipe: where it stands, what it is called, where it answers."""
    if recipe.launch.service is not None:
        yield ("launch", "service"), recipe.name, recipe.launch.service
    for index, one in enumerate(recipe.launch.beside):
        yield ("launch", "beside", index), one.name, one
