"""Handlers for IAM roles, their inline policies, and instance profiles."""

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from urllib.parse import unquote

from cloudgpu.aws.ec2.tagging import tags_to_dict, to_tag_list
from cloudgpu.aws.resources.handler import (
    DescribedHandler,
    ExistingResource,
    HandlerContext,
    Properties,
    all_tags,
    changed_tags,
    complete_interrupted,
    delete_when_unused,
    deleting,
    is_ours,
    response_unless_gone,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors, is_gone
from cloudgpu.aws.session.eventual_consistency import retry
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import AuthError

_ROLE_WAIT_S = 60
"""Maximum number of seconds for a new role to propagate through IAM."""
_RELEASE_S = 60
_NO_BOUNDARY = (
    "if your identity may create roles only with a permissions boundary, set permissions_boundary in the settings to "
    "the ARN of the policy; otherwise attach the policy from `cloudgpu doctor --policy --part roles`"
)


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
        profile = _described_profile(ctx.clients, inputs["name"])
        if not profile or not is_ours(ctx, tags_to_dict(profile.get("Tags"))):
            return None
        return complete_interrupted(
            lambda: self._settled(ctx, inputs["name"], inputs), lambda: _existing_profile(profile, inputs)
        )

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the profile does not exist."""
        profile = _described_profile(ctx.clients, physical_id)
        return _existing_profile(profile, {"tags": tags_to_dict(profile.get("Tags"))}) if profile else None

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
            profile = _described_profile(ctx.clients, physical_id)
            for role in _roles(profile):
                _remove(ctx.clients, physical_id, role)
            with convert_errors(f"deleting instance profile {physical_id}"):
                ctx.clients.client("iam").delete_instance_profile(InstanceProfileName=physical_id)

        delete_when_unused(ctx, attempt, _RELEASE_S)

    def _settled(self, ctx: HandlerContext, name: str, inputs: Properties) -> ExistingResource:
        """Make the profile's role match the inputs, whatever state an interrupted attempt left the profile in."""
        requested = inputs.get("role") or ""
        present = _roles(_described_profile(ctx.clients, name))
        for role in present:
            if role != requested:
                _remove(ctx.clients, name, role)
        if requested and requested not in present:
            retry(ctx.clock, lambda: _add(ctx.clients, name, requested), when=is_gone, total_s=_ROLE_WAIT_S)
        with convert_errors(f"describing instance profile {name}"):
            profile = ctx.clients.client("iam").get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        return _existing_profile(profile, inputs)


def _add(clients: Clients, name: str, role: str) -> None:
    with convert_errors(f"adding role {role} to instance profile {name}"):
        clients.client("iam").add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)


def _remove(clients: Clients, name: str, role: str) -> None:
    with deleting(f"removing role {role} from instance profile {name}"):
        clients.client("iam").remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role)


def _roles(profile: dict[str, Any] | None) -> list[str]:
    return [role["RoleName"] for role in (profile or {}).get("Roles", ())]


def _described_profile(clients: Clients, name: str) -> dict[str, Any] | None:
    get = clients.client("iam").get_instance_profile
    response = response_unless_gone(f"describing instance profile {name}", get, InstanceProfileName=name)
    return response["InstanceProfile"] if response is not None else None


def _existing_profile(profile: dict[str, Any], inputs: Properties) -> ExistingResource:
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
        return _existing_policy(inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Update the text of the role's policy with this name, or return None if the role has no such policy."""
        if _text(ctx.clients, inputs["role"], inputs["name"]) is None:
            return None
        _put(ctx.clients, inputs)
        return _existing_policy(inputs)

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the role has no policy with this name."""
        role, name = physical_id.split(":", 1)
        text = _text(ctx.clients, role, name)
        return None if text is None else _existing_policy({"role": role, "name": name, "policy": text})

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:  # noqa: ARG002
        """Change the policy text."""
        _put(ctx.clients, new)
        return _existing_policy(new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the policy from the role."""
        role, name = physical_id.split(":", 1)
        with deleting(f"deleting policy {name} of role {role}"):
            ctx.clients.client("iam").delete_role_policy(RoleName=role, PolicyName=name)


def _put(clients: Clients, inputs: Properties) -> None:
    with convert_errors(f"adding policy {inputs['name']} to role {inputs['role']}"):
        clients.client("iam").put_role_policy(
            RoleName=inputs["role"], PolicyName=inputs["name"], PolicyDocument=inputs["policy"]
        )


def _text(clients: Clients, role: str, name: str) -> str | None:
    get = clients.client("iam").get_role_policy
    response = response_unless_gone(f"reading policy {name} of role {role}", get, RoleName=role, PolicyName=name)
    if response is None:
        return None
    document = response["PolicyDocument"]
    # botocore parses a valid JSON document into a mapping, but leaves any other document as URL-encoded text.
    return unquote(document) if isinstance(document, str) else json.dumps(document, sort_keys=True)


def _existing_policy(inputs: Properties) -> ExistingResource:
    return ExistingResource(
        f"{inputs['role']}:{inputs['name']}", {key: inputs[key] for key in ("name", "role", "policy")}
    )


class RoleHandler(DescribedHandler):
    """Handler for IAM roles. The Pulumi ID is the role's name."""

    type: ClassVar[str] = "aws:iam/role:Role"
    accepts = frozenset(
        {
            "name",
            "assumeRolePolicy",
            "description",
            "path",
            "maxSessionDuration",
            "permissionsBoundary",
            "managedPolicyArns",
            "inlinePolicies",
            "forceDetachPolicies",
        }
    )
    requires = frozenset({"name", "assumeRolePolicy"})
    defaults: ClassVar[Properties] = {"path": "/", "maxSessionDuration": 3600, "forceDetachPolicies": False}
    replaced_by = frozenset({"name", "path", "permissionsBoundary"})
    nested: ClassVar[Mapping[str, frozenset[str]]] = {"inlinePolicies": frozenset({"name", "policy"})}

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the role with its policies."""
        request = {
            "RoleName": inputs["name"],
            "AssumeRolePolicyDocument": inputs["assumeRolePolicy"],
            "Path": inputs["path"],
            "MaxSessionDuration": int(inputs["maxSessionDuration"]),
            "Tags": to_tag_list(all_tags(ctx, inputs)),
        }
        for key, name in (("description", "Description"), ("permissionsBoundary", "PermissionsBoundary")):
            if inputs.get(key):
                request[name] = inputs[key]
        try:
            with convert_errors(f"creating role {inputs['name']}"):
                ctx.clients.client("iam").create_role(**request)
        except AuthError as err:
            if "PermissionsBoundary" not in request:
                err.hint = _NO_BOUNDARY
            raise
        return self._settled(ctx, inputs["name"], inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Find the role left behind by an interrupted `create` with this token, and set its policies.

        Return None if there is no such role.
        """
        role = _described_role(ctx.clients, inputs["name"])
        if not role or not is_ours(ctx, tags_to_dict(role.get("Tags"))):
            return None
        return complete_interrupted(
            lambda: self._settled(ctx, inputs["name"], inputs), lambda: _existing_role(role, inputs)
        )

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the role does not exist."""
        role = _described_role(ctx.clients, physical_id)
        return _existing_role(role, {"tags": tags_to_dict(role.get("Tags"))}) if role else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the trust policy, description, session duration, policies and tags."""
        iam = ctx.clients.client("iam")
        before, after = changed_tags(ctx, old), changed_tags(ctx, new)
        with convert_errors(f"changing role {physical_id}"):
            iam.update_assume_role_policy(RoleName=physical_id, PolicyDocument=new["assumeRolePolicy"])
            iam.update_role(
                RoleName=physical_id,
                Description=new.get("description") or "",
                MaxSessionDuration=int(new["maxSessionDuration"]),
            )
            iam.tag_role(RoleName=physical_id, Tags=to_tag_list(after))
            removed = sorted(before.keys() - after.keys())
            if removed:
                iam.untag_role(RoleName=physical_id, TagKeys=removed)
        return self._settled(ctx, physical_id, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Remove the role's policies, remove the role from every instance profile, then delete the role."""

        def attempt() -> None:
            remove_attachments(ctx.clients, physical_id)
            with convert_errors(f"deleting role {physical_id}"):
                ctx.clients.client("iam").delete_role(RoleName=physical_id)

        delete_when_unused(ctx, attempt, _RELEASE_S)

    def _settled(self, ctx: HandlerContext, name: str, inputs: Properties) -> ExistingResource:
        """Make the policies match the program. If the program specifies no policies, leave them unchanged."""
        iam = ctx.clients.client("iam")
        with convert_errors(f"setting the policies of role {name}"):
            if inputs.get("managedPolicyArns") is not None:
                _set_managed(iam, name, frozenset(inputs["managedPolicyArns"]))
            if inputs.get("inlinePolicies") is not None:
                _set_inline(iam, name, {policy["name"]: policy["policy"] for policy in inputs["inlinePolicies"]})
            role = iam.get_role(RoleName=name)["Role"]
        return _existing_role(role, inputs)


def remove_attachments(clients: Clients, name: str) -> None:
    """Remove the role's policies and instance profile associations, which would otherwise prevent its deletion."""
    iam = clients.client("iam")
    with convert_errors(f"removing the policies of role {name}"):
        _set_managed(iam, name, frozenset())
        _set_inline(iam, name, {})
        pages = iam.get_paginator("list_instance_profiles_for_role").paginate(RoleName=name)
        for profile in [profile for page in pages for profile in page["InstanceProfiles"]]:
            profile_name = profile["InstanceProfileName"]
            _unless_gone(iam.remove_role_from_instance_profile, InstanceProfileName=profile_name, RoleName=name)


def _set_managed(iam: Any, name: str, requested: frozenset[str]) -> None:  # noqa: ANN401
    pages = iam.get_paginator("list_attached_role_policies").paginate(RoleName=name)
    present = {policy["PolicyArn"] for page in pages for policy in page["AttachedPolicies"]}
    for arn in sorted(requested - present):
        iam.attach_role_policy(RoleName=name, PolicyArn=arn)
    for arn in sorted(present - requested):
        _unless_gone(iam.detach_role_policy, RoleName=name, PolicyArn=arn)


def _set_inline(iam: Any, name: str, requested: Mapping[str, str]) -> None:  # noqa: ANN401
    pages = iam.get_paginator("list_role_policies").paginate(RoleName=name)
    present = {policy_name for page in pages for policy_name in page["PolicyNames"]}
    for policy_name, document in sorted(requested.items()):
        iam.put_role_policy(RoleName=name, PolicyName=policy_name, PolicyDocument=document)
    for policy_name in sorted(present - requested.keys()):
        _unless_gone(iam.delete_role_policy, RoleName=name, PolicyName=policy_name)


def _unless_gone(call: Callable[..., Any], **arguments: str) -> None:
    """Make a call and ignore a not-found error because a concurrent teardown may have deleted the resource."""
    with deleting(f"removing {', '.join(arguments.values())}"):
        call(**arguments)


def _described_role(clients: Clients, name: str) -> dict[str, Any] | None:
    response = response_unless_gone(f"describing role {name}", clients.client("iam").get_role, RoleName=name)
    return response["Role"] if response is not None else None


def _existing_role(role: dict[str, Any], inputs: Properties) -> ExistingResource:
    outputs = {
        **{key: value for key, value in inputs.items() if key != "tags"},
        "arn": role["Arn"],
        "uniqueId": role["RoleId"],
        "createDate": role["CreateDate"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        "name": role["RoleName"],
        "path": role["Path"],
        **tag_outputs(inputs, tags_to_dict(role.get("Tags"))),
    }
    return ExistingResource(role["RoleName"], outputs)
