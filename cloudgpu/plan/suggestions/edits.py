"""Single changes to a recipe, expressed as `--set` options, and the selection of changes to try."""

import re
import shlex
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from cloudgpu.catalog import Gpu
from cloudgpu.catalog.images import driver_for
from cloudgpu.errors import RecipeError
from cloudgpu.plan.checks.software_container import container_choices
from cloudgpu.plan.checks.software_torch import backends_for, series_for
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.suggestions.substitutes import Kinship, offered_elsewhere, substitutes
from cloudgpu.recipe.rules import registry as rules
from cloudgpu.recipe.rules import text as text_rules
from cloudgpu.recipe.schema import PythonEnvironment, Recipe, to_plain_values
from cloudgpu.recipe.set_option import assign
from cloudgpu.text import SHELL_WORD, command

_OPTION: Final = re.compile(rf"--set ({SHELL_WORD})")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_WEIGHTS: Final = {
    **{field: 1 for field in ("resources.zones", "resources.image", "resources.driver")},
    **{field: 1 for field in ("environment.container.image", "environment.python.torch_backend")},
    **{field: 2 for field in ("resources.regions", "resources.network", "budget.expiry")},
    "environment.python.requirements": 2,
    "resources.market": 3,
    "resources.nodes": 4,
    "budget.max_usd": 4,
}
"""Field -> how far a change of its value departs from the request, from 1 (minor) to 5 (major)."""
_TYPE_WEIGHTS: Final[dict[Kinship, int]] = {
    "same GPU": 2,
    "other number": 4,
    "same size": 3,
    "as much memory": 4,
    "most memory": 5,
}
_DEFAULT_WEIGHT: Final = 3


@dataclass(frozen=True)
class Edit:
    """A change to a recipe.

    Attributes:
        sets: (field, text) pairs as typed after `--set`.
        weight: How far the change departs from the request; smaller is better.
        way: Kind of change. Only the best of each kind is shown.
    """

    sets: tuple[tuple[str, str], ...]
    weight: int
    way: str

    @property
    def command(self) -> str:
        """The change as `--set` options, quoted for the shell if necessary."""
        return " ".join(command("--set", f"{field}={text}") for field, text in self.sets)

    def after(self, other: "Edit") -> "Edit":
        """Return a change that applies `other` first, then this change."""
        return Edit((*other.sets, *self.sets), other.weight + self.weight, f"{other.way}, {self.way}")

    def applied(self, recipe: Recipe) -> Recipe | None:
        """Return the changed recipe; None if it is invalid or unchanged."""
        values = to_plain_values(recipe)
        try:
            for field, text in self.sets:
                assign(values, field, text)
            if any(text_rules.text_problems(values)):
                return None
            changed = Recipe.model_validate(values, by_alias=True, by_name=False)
        except (RecipeError, ValidationError):
            return None
        return None if changed == recipe or any(rules.rule_problems(changed)) else changed


def edit(field: str, text: str, *more: tuple[str, str], weight: int | None = None, way: str = "") -> Edit:
    """Return a change that sets one field and the fields in `more`."""
    return Edit(((field, text), *more), weight or _WEIGHTS.get(field, _DEFAULT_WEIGHT), way or field)


def edits_in_fixes(fixes: Iterable[str]) -> Iterator[Edit]:
    """Yield one change for each `--set` option in the fixes that checks suggest."""
    for fix in fixes:
        for word in _OPTION.findall(fix):
            plain_word = shlex.split(word)[0] if word.startswith("'") else word.rstrip(",;)")
            if match := _ASSIGNMENT.fullmatch(plain_word):
                yield edit(match[1], match[2])


def candidate_edits(question: PlannerInput, refused: Set[str]) -> Iterator[Edit]:
    """Yield the single changes that may resolve the errors of the checks in `refused`."""
    yield from _drivers(question, refused)
    yield from _containers(question, refused)
    yield from _wheels(question, refused)
    yield from _locations_markets_networks(question)
    yield from _hardware(question)


def _drivers(question: PlannerInput, refused: Set[str]) -> Iterator[Edit]:
    if not refused & {"machine-image", "driver", "driver-given", "cuda"}:
        return
    resources = question.recipe.resources
    if resources.image is not None:
        yield edit("resources.image", "")
    for gpu in _gpus(question):
        yield edit("resources.driver", str(driver_for(gpu.architecture).branch))
    if resources.driver is not None:
        yield edit("resources.driver", "")


def _containers(question: PlannerInput, refused: Set[str]) -> Iterator[Edit]:
    container = question.recipe.environment.container
    if container is not None and refused & {"image", "cuda"}:
        for gpu in _gpus(question):
            for image in container_choices(container.image, gpu, question):
                yield edit("environment.container.image", image)


def _wheels(question: PlannerInput, refused: Set[str]) -> Iterator[Edit]:
    python, known = question.recipe.environment.python, question.software.torch
    if python is not None and refused & {"torch", "cuda"}:
        for gpu in _gpus(question):
            for build in backends_for(python, gpu, known):
                yield edit("environment.python.torch_backend", build)
            yield from _older_torch(python, series_for(python, gpu, known))


def _gpus(question: PlannerInput) -> Iterator[Gpu]:
    """Yield each requested GPU once."""
    yield from (
        question.catalog.gpus[name] for name in dict.fromkeys(instance_type.gpu for instance_type in question.types)
    )


def _older_torch(python: PythonEnvironment, series: str) -> Iterator[Edit]:
    """Yield a change that pins PyTorch to a series, unless a requirement has a comma, which `--set` cannot express."""
    others = [
        requirement
        for requirement in python.requirements
        if not re.match(r"\s*torch\s*([\[=~<>!;]|$)", requirement, re.IGNORECASE)
    ]
    if series and not any("," in requirement for requirement in others):
        yield edit("environment.python.requirements", ",".join([f"torch~={series}.0", *others]))


def _locations_markets_networks(question: PlannerInput) -> Iterator[Edit]:
    resources = question.recipe.resources
    if resources.zones:
        yield edit("resources.zones", "")
    anywhere = (("resources.zones", ""),) if resources.zones else ()
    for region in offered_elsewhere(question):
        yield edit("resources.regions", region, *anywhere)
    no_reservation = (("resources.reservation", ""),) if resources.reservation else ()
    for market in ("on-demand", "spot"):
        if market != resources.market:
            yield edit("resources.market", market, *no_reservation)
    for network in ("auto", "tcp"):
        if network != resources.network:
            yield edit("resources.network", network)


def _hardware(question: PlannerInput) -> Iterator[Edit]:
    for kinship, instance_type in substitutes(question):
        yield edit("resources.instance_type", instance_type.name, weight=_TYPE_WEIGHTS[kinship], way=kinship)
