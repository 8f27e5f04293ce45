"""Map settings to the configuration keys of the infrastructure programs: existing resources, and the user's tags."""

from cloudgpu.engine.config import list_setting
from cloudgpu.settings import Settings
from cloudgpu.settings.tags import tags_text


def cluster_program_config(settings: Settings) -> dict[str, str]:
    """Return the cluster program's configuration for existing resources, omitting settings that have no value."""
    named = {
        "reach": "" if settings.reach == "direct" else settings.reach,
        "vpcId": settings.vpc_id,
        "createVpc": "true" if settings.create_vpc else "",
        "subnetId": settings.subnet_id,
        "securityGroupId": settings.security_group_id,
        "permissionsBoundary": settings.permissions_boundary,
        "roleName": "" if settings.instance_profile else settings.role_name,
        "instanceProfile": settings.instance_profile,
        "scheduleRoleArn": settings.expiry_schedule_role,
        "keyName": settings.key_name,
        "kmsKeyId": settings.kms_key_id,
        "tags": tags_text(settings.tags),
        "expirySchedule": "" if settings.expiry_schedule else "false",
    }
    return {name: value for name, value in named.items() if value}


def storage_program_config(settings: Settings) -> dict[str, str]:
    """Return the storage program's configuration for existing resources, omitting settings that have no value."""
    named = {
        "vpcId": settings.vpc_id,
        "subnetIds": list_setting([settings.subnet_id] if settings.subnet_id else []),
        "clientSecurityGroupIds": list_setting([settings.security_group_id] if settings.security_group_id else []),
        "kmsKeyId": settings.kms_key_id,
        "tags": tags_text(settings.tags),
    }
    return {name: value for name, value in named.items() if value}
