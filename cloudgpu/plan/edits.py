"""Single changes to a recipe, expressed as `--set` options, and which of them to try."""

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
from cloudgpu.plan.planner_input import Question
from cloudgpu.plan.substitutes import Kinship, offered_elsewhere, substitutes
from cloudgpu.recipe import rules, text_rules
from cloudgpu.recipe.plain_values import plain
from cloudgpu.recipe.schema import PythonEnvironment, Recipe
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
"""How far changing a field departs from the request: 1 is little, 5 is much. Default: 3."""
_OF_TYPES: Final[dict[Kinship, int]] = {
    "same GPU": 2,
    "other number": 4,
    "same size": 3,
    "as much memory": 4,
    "most memory": 5,
}
_USUAL: Final = 3


@dataclass(frozen=True)
class Edit:
    """A change to a recipe.

    Attributes:
        sets: (field, text) pairs as typed after `--set`.
        weight: How far the change departs from the request.
        way: Kind of change. Only the best of each kind is shown.
    """

    sets: tuple[tuple[str, str], ...]
    weight: int
    way: str

    @property
    def command(self) -> str:
        """`--set resources.nodes=1`, quoted for the shell if necessary."""
        return " ".join(command("--set", f"{field}={text}") for field, text in self.sets)

    def after(self, other: "Edit") -> "Edit":
        """Return the combination of both changes, `other` first."""
        return Edit((*other.sets, *self.sets), other.weight + self.weight, f"{other.way}, {self.way}")

    def applied(self, recipe: Recipe) -> Recipe | None:
        """Return the changed recipe; None if it is invalid or unchanged."""
        values = plain(recipe)
        try:
            for field, text in self.sets:
                assign(values, field, text)
            if any(text_rules.faults(values)):
                return None
            changed = Recipe.model_validate(values, by_alias=True, by_name=False)
        except (RecipeError, ValidationError):
            return None
        return None if changed == recipe or any(rules.rule_problems(changed)) else changed


def edit(field: str, text: str, *more: tuple[str, str], weight: int | None = None, way: str = "") -> Edit:
    """Return a change of one field, together with the fields in `more`."""
    return Edit(((field, text), *more), weight or _WEIGHTS.get(field, _USUAL), way or field)


def named_in(fixes: Iterable[str]) -> Iterator[Edit]:
    """Yield the `--set` changes that the fixes of checks mention."""
    for fix in fixes:
        for word in _OPTION.findall(fix):
            plain_word = shlex.split(word)[0] if word.startswith("'") else word.rstrip(",;)")
            if match := _ASSIGNMENT.fullmatch(plain_word):
                yield edit(match[1], match[2])


def worth_trying(question: Question, refused: Set[str]) -> Iterator[Edit]:
    """Yield every single change that may satisfy these checks, smallest departures first."""
    yield from _drivers(question, refused)
    yield from _containers(question, refused)
    yield from _wheels(question, refused)
    yield from _places(question)
    yield from _hardware(question)


def _drivers(question: Question, refused: Set[str]) -> Iterator[Edit]:
    if not refused & {"machine-image", "driver", "driver-given", "cuda"}:
        return
    resources = question.recipe.resources
    if resources.image is not None:
        yield edit("resources.image", "")
    for gpu in _gpus(question):
        yield edit("resources.driver", str(driver_for(gpu.architecture).branch))
    if resources.driver is not None:
        yield edit("resources.driver", "")


def _containers(question: Question, refused: Set[str]) -> Iterator[Edit]:
    container = question.recipe.environment.container
    if container is not None and refused & {"image", "cuda"}:
        for gpu in _gpus(question):
            for image in container_choices(container.image, gpu, question):
                yield edit("environment.container.image", image)


def _wheels(question: Question, refused: Set[str]) -> Iterator[Edit]:
    python, known = question.recipe.environment.python, question.software.torch
    if python is not None and refused & {"torch", "cuda"}:
        for gpu in _gpus(question):
            for build in backends_for(python, gpu, known):
                yield edit("environment.python.torch_backend", build)
            yield from _older_torch(python, series_for(python, gpu, known))


def _gpus(question: Question) -> Iterator[Gpu]:
    """Yield each requested GPU once."""
    yield from (question.catalog.gpus[name] for name in dict.fromkeys(kind.gpu for kind in question.types))


def _older_torch(python: PythonEnvironment, series: str) -> Iterator[Edit]:
    """Yield a change that pins PyTorch to a series. Lists with a comma in an entry cannot be typed after `--set`."""
    others = [
        requirement
        for requirement in python.requirements
        if not re.match(r"\s*torch\s*([\[=~<>!;]|$)", requirement, re.IGNORECASE)
    ]
    if series and not any("," in requirement for requirement in others):
        yield edit("environment.python.requirements", ",".join([f"torch~={series}.0", *others]))


def _places(question: Question) -> Iterator[Edit]:
    resources = question.recipe.resources
    if resources.zones:
        yield edit("resources.zones", "")
    anywhere = (("resources.zones", ""),) if resources.zones else ()
    for region in offered_elsewhere(question):
        yield edit("resources.regions", region, *anywhere)
    held = (("resources.reservation", ""),) if resources.reservation else ()
    for market in ("on-demand", "spot"):
        if market != resources.market:
            yield edit("resources.market", market, *held)
    for network in ("auto", "tcp"):
        if network != resources.network:
            yield edit("resources.network", network)


def _hardware(question: Question) -> Iterator[Edit]:
    for kinship, kind in substitutes(question):
        yield edit("resources.instance_type", kind.name, weight=_OF_TYPES[kinship], way=kinship)
