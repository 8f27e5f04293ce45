"""`aws:iam/instanceProfile:InstanceProfile`."""

from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import listed, mapped
from cloudgpu.aws.resources.base import HandlerContext, Physical, Properties
from cloudgpu.aws.resources.described import DescribedHandler, all_tags, changed_tags, completed, is_ours, tag_outputs
from cloudgpu.aws.session.errors import is_gone, is_in_use, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import retried
from cloudgpu.errors import CloudGpuError

_SPREAD_S = 60
"""How long a new role may be unknown to some of IAM's servers."""
_RELEASE_S = 60


class InstanceProfileHandler(DescribedHandler):
    """Instance profile, which attaches a role to an instance. Its Pulumi ID is its name."""

    type: ClassVar[str] = "aws:iam/instanceProfile:InstanceProfile"
    accepts = frozenset({"name", "path", "role"})
    requires = frozenset({"name"})
    defaults: ClassVar[Properties] = {"path": "/"}
    replaced_by = frozenset({"name", "path"})

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Create the profile and add the role.

        Raises:
            BadRequestError: A profile of this name already exists, or the role does not exist.
        """
        name = inputs["name"]
        with typed(f"making instance profile {name}"):
            ctx.clients.client("iam").create_instance_profile(
                InstanceProfileName=name, Path=inputs["path"], Tags=listed(all_tags(ctx, inputs))
            )
        return self._settled(ctx, name, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Return the profile of this name if this call created it, after adding its role."""
        found = _described(ctx.clients, inputs["name"])
        if not found or not is_ours(ctx, mapped(found.get("Tags"))):
            return None
        return completed(lambda: self._settled(ctx, inputs["name"], inputs), lambda: _physical(found, inputs))

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state."""
        found = _described(ctx.clients, physical_id)
        return _physical(found, {"tags": mapped(found.get("Tags"))}) if found else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:
        """Change its role and tags."""
        iam = ctx.clients.client("iam")
        before, after = changed_tags(ctx, old), changed_tags(ctx, new)
        with typed(f"tagging instance profile {physical_id}"):
            iam.tag_instance_profile(InstanceProfileName=physical_id, Tags=listed(after))
            removed = sorted(before.keys() - after.keys())
            if removed:
                iam.untag_instance_profile(InstanceProfileName=physical_id, TagKeys=removed)
        return self._settled(ctx, physical_id, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Take the role out and delete it."""

        def attempt() -> None:
            found = _described(ctx.clients, physical_id)
            for role in _roles(found):
                _remove(ctx.clients, physical_id, role)
            with typed(f"deleting instance profile {physical_id}"):
                ctx.clients.client("iam").delete_instance_profile(InstanceProfileName=physical_id)

        try:
            retried(ctx.clock, attempt, when=is_in_use, total_s=_RELEASE_S)
        except CloudGpuError as err:
            if not is_gone(err):
                raise

    def _settled(self, ctx: HandlerContext, name: str, inputs: Properties) -> Physical:
        """Make sure the profile has the requested role, wherever an earlier attempt was interrupted."""
        wanted = inputs.get("role") or ""
        present = _roles(_described(ctx.clients, name))
        for role in present:
            if role != wanted:
                _remove(ctx.clients, name, role)
        if wanted and wanted not in present:
            retried(ctx.clock, lambda: _add(ctx.clients, name, wanted), when=is_gone, total_s=_SPREAD_S)
        with typed(f"looking at instance profile {name}"):
            found = ctx.clients.client("iam").get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        return _physical(found, inputs)


def _add(clients: Clients, name: str, role: str) -> None:
    with typed(f"putting role {role} into instance profile {name}"):
        clients.client("iam").add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)


def _remove(clients: Clients, name: str, role: str) -> None:
    try:
        with typed(f"taking role {role} out of instance profile {name}"):
            clients.client("iam").remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role)
    except CloudGpuError as err:
        if not is_gone(err):
            raise


def _roles(found: dict[str, Any] | None) -> list[str]:
    return [role["RoleName"] for role in (found or {}).get("Roles", ())]


def _described(clients: Clients, name: str) -> dict[str, Any] | None:
    try:
        with typed(f"looking at instance profile {name}"):
            answer = clients.client("iam").get_instance_profile(InstanceProfileName=name)
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    found: dict[str, Any] = answer["InstanceProfile"]
    return found


def _physical(found: dict[str, Any], inputs: Properties) -> Physical:
    outputs = {
        "arn": found["Arn"],
        "uniqueId": found["InstanceProfileId"],
        "createDate": found["CreateDate"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        "name": found["InstanceProfileName"],
        "path": found["Path"],
        "role": next(iter(_roles(found)), ""),
        **tag_outputs(inputs, mapped(found.get("Tags"))),
    }
    return Physical(found["InstanceProfileName"], outputs)
