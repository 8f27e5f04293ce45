"""Find the values of a run's secrets before anything is launched: environment, files, or a prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cloudgpu.app.planning.planner import Planned
from cloudgpu.cli.options.environment import SecretOption
from cloudgpu.cli.terminal.prompts import Prompts
from cloudgpu.errors import UsageError
from cloudgpu.plan.checks.environment import required_variables
from cloudgpu.run.start import secret_values
from cloudgpu.text import command


def ask_for_secrets(
    planned: Planned, environ: Mapping[str, str], options: Sequence[SecretOption], prompts: Prompts
) -> tuple[Planned, Mapping[str, str]]:
    """Return the environment with every secret of a plan, and the plan without the finding that one is missing.

    Secrets that are not in the environment are asked for if there is a terminal.
    """
    recipe = planned.plan.recipe
    needed, known = recipe.environment.secrets, required_variables(recipe)
    unknown = next((option.name for option in options if option.name not in known), "")
    if unknown:
        message = f"--secret {unknown}: the saved plan does not have this secret"
        again = command("cloudgpu", "plan", "RECIPE", "--secret", unknown, "--out", "FILE")
        raise UsageError(message, hint=f"save the plan again with `{again}`")
    missing = [name for name in needed if name not in environ]
    if not missing or not prompts.are_possible:
        secret_values(needed, environ)
        return planned, environ
    environ = {**environ, **{name: prompts.ask_for_secret(name) for name in missing}}
    findings = tuple(finding for finding in planned.plan.findings if finding.check != "secret-missing")
    return replace(planned, plan=replace(planned.plan, findings=findings)), environ
