"""Validation rules for services: names, ports, tokens, and placeholders in commands and pages."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.recipe import template
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.rules.text import RUN_PORTS
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sections.launch import Endpoint

_SSH_PORT: Final = 22


def service_launcher_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require `launch.service` if the launcher is `service`, and reject it with other launchers."""
    launch = recipe.launch
    if launch.launcher == "service" and launch.service is None:
        yield Problem(
            ("launch", "service"), "required by the service launcher; set the service's port, for example {port: 8888}"
        )
    if launch.launcher != "service" and launch.service is not None:
        message = f"applies only to the service launcher, not to {launch.launcher}; move the service to launch.beside"
        yield Problem(("launch", "service"), message)


def service_name_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require every service to have a unique name and a free port."""
    names: set[str] = set()
    ports: dict[int, str] = {_SSH_PORT: "the SSH server"}
    for index, service in enumerate(recipe.launch.beside):
        if service.name in names:
            yield Problem(("launch", "beside", index, "name"), f"another service is already named {service.name}")
        names.add(service.name)
    for path, name, endpoint in endpoints(recipe):
        if endpoint.port in RUN_PORTS:
            message = f"ports {RUN_PORTS.start}-{RUN_PORTS.stop - 1} are reserved for cloudgpu; choose another port"
            yield Problem((*path, "port"), message)
        elif endpoint.port in ports:
            yield Problem(
                (*path, "port"), f"port {endpoint.port} is already used by {ports[endpoint.port]}; choose another port"
            )
        ports.setdefault(endpoint.port, name)


def service_reference_problems(recipe: Recipe) -> Iterator[Problem]:
    """Reject token variables that the environment already sets, and unknown placeholders in commands and pages."""
    taken = {**dict.fromkeys(recipe.environment.env, "env"), **dict.fromkeys(recipe.environment.secrets, "secrets")}
    for path, _, endpoint in endpoints(recipe):
        if endpoint.token in taken:
            message = f"{endpoint.token} is also in environment.{taken[endpoint.token]}; remove it there"
            yield Problem((*path, "token"), message)
        if "{token}" in endpoint.page and endpoint.token is None:
            yield Problem((*path, "page"), "uses {token}, but the service has no token; add token: VARIABLE_NAME")
        if set("{}") & set(endpoint.page.replace("{token}", "")):
            yield Problem((*path, "page"), "the only placeholder allowed here is {token}")
    names = (*template.placeholders(recipe), *template.SERVICE_NAMES)
    for index, service in enumerate(recipe.launch.beside):
        for message in template.placeholder_problems(service.command, names):
            yield Problem(("launch", "beside", index, "command"), message)


def endpoints(recipe: Recipe) -> Iterator[tuple[FieldPath, str, Endpoint]]:
    """Yield the field path, name and endpoint of every service in a recipe."""
    if recipe.launch.service is not None:
        yield ("launch", "service"), recipe.name, recipe.launch.service
    for index, service in enumerate(recipe.launch.beside):
        yield ("launch", "beside", index), service.name, service
