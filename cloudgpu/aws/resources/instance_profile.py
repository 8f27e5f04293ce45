"""Handler for `aws:iam/instanceProfile:InstanceProfile`."""

from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import tags_to_dict, to_tag_list
from cloudgpu.aws.resources.base import ExistingResource, HandlerContext, Properties
from cloudgpu.aws.resources.described import (
    DescribedHandler,
    all_tags,
    changed_tags,
    complete_interrupted,
    is_ours,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors, is_gone, is_in_use
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import retry
from cloudgpu.errors import CloudGpuError

_ROLE_WAIT_S = 60
"""Maximum number of seconds for a new role to propagate through IAM."""
_RELEASE_S = 60


class InstanceProfileHandler(DescribedHandler):
    """Handler for instance profiles, which attach a role to an instance. The Pulumi ID is the profile's name."""

    type: ClassVar[str] = "aws:iam/instanceProfile:InstanceProfile"
    accepts = frozenset({"name", "path", "role"})
    requires = frozenset({"name"})
    defaults: ClassVar[Properties] = {"path": "/"}
    replaced_by = frozenset({"name", "path"})

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the profile and add the role."""
        name = inputs["name"]
        with convert_errors(f"creating instance profile {name}"):
            ctx.clients.client("iam").create_instance_profile(
                InstanceProfileName=name, Path=inputs["path"], Tags=to_tag_list(all_tags(ctx, inputs))
            )
        return self._settled(ctx, name, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Find the profile left behind by an interrupted `create` with this token, and add its role.

        Return None if there is no such profile.
        """
        profile = _described(ctx.clients, inputs["name"])
        if not profile or not is_ours(ctx, tags_to_dict(profile.get("Tags"))):
            return None
        return complete_interrupted(
            lambda: self._settled(ctx, inputs["name"], inputs), lambda: _physical(profile, inputs)
        )

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the profile does not exist."""
        profile = _described(ctx.clients, physical_id)
        return _physical(profile, {"tags": tags_to_dict(profile.get("Tags"))}) if profile else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the role and the tags."""
        iam = ctx.clients.client("iam")
        before, after = changed_tags(ctx, old), changed_tags(ctx, new)
        with convert_errors(f"tagging instance profile {physical_id}"):
            iam.tag_instance_profile(InstanceProfileName=physical_id, Tags=to_tag_list(after))
            removed = sorted(before.keys() - after.keys())
            if removed:
                iam.untag_instance_profile(InstanceProfileName=physical_id, TagKeys=removed)
        return self._settled(ctx, physical_id, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Remove the role from the profile, then delete the profile."""

        def attempt() -> None:
            profile = _described(ctx.clients, physical_id)
            for role in _roles(profile):
                _remove(ctx.clients, physical_id, role)
            with convert_errors(f"deleting instance profile {physical_id}"):
                ctx.clients.client("iam").delete_instance_profile(InstanceProfileName=physical_id)

        try:
            retry(ctx.clock, attempt, when=is_in_use, total_s=_RELEASE_S)
        except CloudGpuError as err:
            if not is_gone(err):
                raise

    def _settled(self, ctx: HandlerContext, name: str, inputs: Properties) -> ExistingResource:
        """Make the profile's role match the inputs, whatever state an interrupted attempt left the profile in."""
        requested = inputs.get("role") or ""
        present = _roles(_described(ctx.clients, name))
        for role in present:
            if role != requested:
                _remove(ctx.clients, name, role)
        if requested and requested not in present:
            retry(ctx.clock, lambda: _add(ctx.clients, name, requested), when=is_gone, total_s=_ROLE_WAIT_S)
        with convert_errors(f"describing instance profile {name}"):
            profile = ctx.clients.client("iam").get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        return _physical(profile, inputs)


def _add(clients: Clients, name: str, role: str) -> None:
    with convert_errors(f"adding role {role} to instance profile {name}"):
        clients.client("iam").add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)


def _remove(clients: Clients, name: str, role: str) -> None:
    try:
        with convert_errors(f"removing role {role} from instance profile {name}"):
            clients.client("iam").remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role)
    except CloudGpuError as err:
        if not is_gone(err):
            raise


def _roles(profile: dict[str, Any] | None) -> list[str]:
    return [role["RoleName"] for role in (profile or {}).get("Roles", ())]


def _described(clients: Clients, name: str) -> dict[str, Any] | None:
    try:
        with convert_errors(f"describing instance profile {name}"):
            response = clients.client("iam").get_instance_profile(InstanceProfileName=name)
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    profile: dict[str, Any] = response["InstanceProfile"]
    return profile


def _physical(profile: dict[str, Any], inputs: Properties) -> ExistingResource:
    outputs = {
        "arn": profile["Arn"],
        "uniqueId": profile["InstanceProfileId"],
        "createDate": profile["CreateDate"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        "name": profile["InstanceProfileName"],
        "path": profile["Path"],
        "role": next(iter(_roles(profile)), ""),
        **tag_outputs(inputs, tags_to_dict(profile.get("Tags"))),
    }
    return ExistingResource(profile["InstanceProfileName"], outputs)
