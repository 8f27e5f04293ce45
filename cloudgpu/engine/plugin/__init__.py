"""The handlers of the direct engine as a Pulumi resource plugin for `aws`, for the rehearsal cloud alone."""
