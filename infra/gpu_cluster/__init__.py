"""A GPU cluster as Pulumi components. Imports nothing of cloudgpu, so that plain `pulumi up` works too."""
