"""SSM Parameter Store: moto's implementation plus the public parameters of machine images."""

from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.ssm.exceptions import ParameterNotFound
from moto.ssm.responses import SimpleSystemManagerResponse

from cloudgpu.rehearsal.aws_api.ec2.public_images import IMAGE_FOLDERS, ami_of_parameter

_LAST_MODIFIED = datetime(2026, 1, 1, tzinfo=UTC)


class StrictSsm(SimpleSystemManagerResponse):
    """A handler for one SSM request."""

    def get_parameter(self) -> ActionResult:
        """Return a public image parameter, or a parameter stored in moto."""
        name = str(self._get_param("Name"))
        parameter = self._public(name)
        if parameter is None and name.startswith(IMAGE_FOLDERS):
            raise ParameterNotFound(f"Parameter {name} not found.")
        return ActionResult({"Parameter": parameter}) if parameter else super().get_parameter()

    def get_parameters(self) -> ActionResult:
        """Return public image parameters and parameters stored in moto, and the names that do not exist."""
        names = [str(name) for name in self._get_param("Names") or []]
        public = [row for row in (self._public(name) for name in names) if row]
        public_names = {row["Name"] for row in public}
        stored_names = [name for name in names if name not in public_names]
        readable = [name for name in stored_names if not name.startswith(IMAGE_FOLDERS)]
        stored = self.ssm_backend.get_parameters(readable) if readable else {}
        descriptions = [row.response_object(self._get_param("WithDecryption"), self.region) for row in stored.values()]
        missing = [name for name in stored_names if name not in stored]
        return ActionResult({"Parameters": [*public, *descriptions], "InvalidParameters": missing})

    def _public(self, name: str) -> dict[str, Any] | None:
        ami_id = ami_of_parameter(name, str(self.region))
        if ami_id is None:
            return None
        return {
            "Name": name,
            "Type": "String",
            "Value": ami_id,
            "Version": 1,
            "LastModifiedDate": _LAST_MODIFIED.timestamp(),
            "ARN": f"arn:aws:ssm:{self.region}::parameter{name}",
            "DataType": "aws:ec2:image",
        }
