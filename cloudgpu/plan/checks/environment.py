"""What a rank finds around it: variables, secrets, and the login of its image."""

import re
from collections.abc import Iterator
from typing import Final

from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.recipe.reserved import LAUNCHER_VARIABLES
from cloudgpu.recipe.schema import Recipe
from cloudgpu.text import command

_PUBLIC: Final = ("nvcr.io/nvidia/", "public.ecr.aws/")
_PRIVATE: Final = re.compile(r"^(nvcr\.io/|[a-z0-9-]+\.azurecr\.io/|[a-z0-9-]+-docker\.pkg\.dev/)")
"""Registries that give nothing without a login, but for the public parts above. The login for ECR is fetched."""

_KEYS: Final = (
    ("an AWS access key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("a GitHub token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,})")),
    ("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}")),
    ("an NGC key", re.compile(r"\bnvapi-[\w-]{20,}")),
    (
        "an API key",
        re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{20,}|\bAIza[\w-]{35}|\bxox[baprs]-[\w-]{10,}|\bglpat-[\w-]{20}"),
    ),
    ("a signed token", re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}")),
    ("an address with a password", re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@")),
)
_TELLING: Final = re.compile(r"(?:SECRET|TOKEN|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)$", re.IGNORECASE)
_KEYLIKE: Final = re.compile(r"^(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/_=.-]{16,}$")


@check("secrets", "note", "Whoever starts the run knows which of the variables around it go along.")
def secrets_asked(case: Case) -> Iterator[Found]:
    """The secrets that the caller's environment must hold."""
    secrets = _wanted(case.question.recipe)
    if secrets:
        yield Found(f"taken from your environment and never stored: {', '.join(secrets)}")


@check("secret-missing", "warning", "A secret that is not at hand stops the run when it is wanted, not before.")
def secrets_at_hand(case: Case) -> Iterator[Found]:
    """Secrets that the caller's environment does not hold."""
    at_hand = case.question.quotes.survey.set_variables
    missing = [] if at_hand is None else [name for name in _wanted(case.question.recipe) if name not in at_hand]
    if missing:
        export = command("export", f"{missing[0]}=...")
        yield Found(f"not set in your environment: {', '.join(missing)}", f"{export} before you train")


@check(
    "credentials",
    "error",
    "A key in a recipe ends up in logs, records and a repository, where it cannot be taken back.",
)
def no_keys_written(case: Case) -> Iterator[Found]:
    """Values that look like keys; the value itself is never shown."""
    for place, name, value in _written(case.question.recipe):
        kind = next((what for what, form in _KEYS if form.search(value)), "")
        if not kind and _TELLING.search(name) and _KEYLIKE.match(value):
            kind = "a secret"
        if kind:
            fix = f"list {name} under environment.secrets, export it, and take the value out" if name else ""
            yield Found(f"{place} holds what looks like {kind}", fix or "name a variable under environment.secrets")


@check(
    "variables", "error", "Ranks that disagree about their number or their meeting point wait for each other for ever."
)
def launcher_sets_them(case: Case) -> Iterator[Found]:
    """Variables in `env` or `secrets` that the launcher sets itself."""
    recipe = case.question.recipe
    reserved = LAUNCHER_VARIABLES[recipe.launch.launcher]
    for name in sorted(reserved & {*recipe.environment.env, *recipe.environment.secrets}):
        yield Found(f"{name} is set by the {recipe.launch.launcher} launcher", f"take {name} out of environment")


@check("login", "error", "A registry that asks for a login refuses the image when the nodes are paid for.")
def registry_login(case: Case) -> Iterator[Found]:
    """A login without a secret, or a private registry without a login."""
    container, secrets = case.question.recipe.environment.container, case.question.recipe.environment.secrets
    if container is None:
        return
    if container.login is not None and not secrets and container.password is None:
        message = f"{container.image} is pulled as {container.login}, and no variable with its secret is named"
        yield Found(message, "name it in environment.container.password")
    elif container.login is None and container.password is not None:
        message = f"{container.password} is the password of no login"
        yield Found(message, "set environment.container.login, for instance $oauthtoken for NGC")
    elif container.login is None and _PRIVATE.match(container.image) and not container.image.startswith(_PUBLIC):
        message = f"{container.image} lies in a registry that asks for a login, and the recipe names none"
        yield Found(message, "set environment.container.login and password", "warning")


def _wanted(recipe: Recipe) -> tuple[str, ...]:
    """Every variable of the caller's that the run takes, each once."""
    container = recipe.environment.container
    password = container.password if container is not None else None
    return tuple(dict.fromkeys([*recipe.environment.secrets, *([password] if password else [])]))


def _written(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """(where, name of a variable or empty, text) of everything in a recipe that reaches a node as text."""
    for name, text in recipe.environment.env.items():
        yield f"environment.env.{name}", name, text
    for name, value in recipe.params.items():
        yield f"params.{name}", name, str(value)
    yield "launch.command", "", recipe.launch.command
    for flag in recipe.environment.container.flags if recipe.environment.container else ():
        yield "environment.container.flags", "", flag
    for data in recipe.data:
        yield f"data.{data.name}", "", data.source
