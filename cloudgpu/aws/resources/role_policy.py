"""Handler for `aws:iam/rolePolicy:RolePolicy`."""

import json
from typing import Any, ClassVar
from urllib.parse import unquote

from cloudgpu.aws.resources.base import ExistingResource, HandlerContext, Properties
from cloudgpu.aws.resources.described import DescribedHandler
from cloudgpu.aws.session.errors import convert_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import retry
from cloudgpu.errors import CloudGpuError

_ROLE_WAIT_S = 60
"""Maximum number of seconds for a new role to propagate through IAM."""


class RolePolicyHandler(DescribedHandler):
    """Handler for inline role policies. A policy has no tags and is deleted with its role.

    The Pulumi ID is `role:name`.
    """

    type: ClassVar[str] = "aws:iam/rolePolicy:RolePolicy"
    accepts = frozenset({"name", "role", "policy"})
    requires = accepts
    replaced_by = frozenset({"name", "role"})

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Add the policy to the role. Idempotent."""
        retry(ctx.clock, lambda: _put(ctx.clients, inputs), when=is_gone, total_s=_ROLE_WAIT_S)
        return _physical(inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Update the text of the role's policy with this name, or return None if the role has no such policy."""
        if _text(ctx.clients, inputs["role"], inputs["name"]) is None:
            return None
        _put(ctx.clients, inputs)
        return _physical(inputs)

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the role has no policy with this name."""
        role, name = physical_id.split(":", 1)
        text = _text(ctx.clients, role, name)
        return None if text is None else _physical({"role": role, "name": name, "policy": text})

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:  # noqa: ARG002
        """Change the policy text."""
        _put(ctx.clients, new)
        return _physical(new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the policy from the role."""
        role, name = physical_id.split(":", 1)
        try:
            with convert_errors(f"deleting policy {name} of role {role}"):
                ctx.clients.client("iam").delete_role_policy(RoleName=role, PolicyName=name)
        except CloudGpuError as err:
            if not is_gone(err):
                raise


def _put(clients: Clients, inputs: Properties) -> None:
    with convert_errors(f"adding policy {inputs['name']} to role {inputs['role']}"):
        clients.client("iam").put_role_policy(
            RoleName=inputs["role"], PolicyName=inputs["name"], PolicyDocument=inputs["policy"]
        )


def _text(clients: Clients, role: str, name: str) -> str | None:
    try:
        with convert_errors(f"reading policy {name} of role {role}"):
            document: Any = clients.client("iam").get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    # botocore parses a valid JSON document into a mapping, but leaves any other document as URL-encoded text.
    return unquote(document) if isinstance(document, str) else json.dumps(document, sort_keys=True)


def _physical(inputs: Properties) -> ExistingResource:
    return ExistingResource(
        f"{inputs['role']}:{inputs['name']}", {key: inputs[key] for key in ("name", "role", "policy")}
    )
