"""Every rule of the catalogue, in the order in which they are asked."""

from typing import Final

from cloudgpu.catalog.checking import containers, gpus, types, versions, wheels
from cloudgpu.catalog.checking.known import Known, Problem, Rule

RULES: Final[tuple[Rule, ...]] = (
    versions.versions_readable,
    types.hardware_known,
    types.end_told,
    types.offers_sound,
    types.prices_sound,
    types.types_sourced,
    gpus.windows_ordered,
    gpus.gpus_sensible,
    gpus.drivers_fit,
    gpus.gpus_sourced,
    containers.months_sound,
    containers.months_rise,
    containers.months_serve,
    containers.images_sound,
    wheels.wheels_apart,
    wheels.wheels_agree,
    wheels.fabric_sound,
)


def problems(given: Known) -> tuple[Problem, ...]:
    """What every rule finds; nothing for data that agrees with itself.

    Versions that cannot be read are told alone: the other rules compare them.
    """
    first, *others = RULES
    unreadable = tuple(first(given))
    return unreadable or tuple(found for rule in others for found in rule(given))
