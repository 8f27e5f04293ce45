"""Every fuzz target."""

from tests.unit.fuzz import (
    targets_agent,
    targets_aws,
    targets_handlers,
    targets_home,
    targets_pulumi,
    targets_registry,
    targets_rehearsal,
    targets_rehearsal_files,
    targets_setup,
    targets_transfer,
    targets_user,
)
from tests.unit.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    *targets_home.TARGETS,
    *targets_aws.TARGETS,
    *targets_registry.TARGETS,
    *targets_handlers.TARGETS,
    *targets_agent.TARGETS,
    *targets_pulumi.TARGETS,
    *targets_rehearsal.TARGETS,
    *targets_rehearsal_files.TARGETS,
    *targets_setup.TARGETS,
    *targets_transfer.TARGETS,
    *targets_user.TARGETS,
)
BY_NAME = {one.name: one for one in TARGETS}
