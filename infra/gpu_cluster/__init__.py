"""A GPU cluster as Pulumi components. Imports nothing from cloudgpu, so plain `pulumi up` works too."""
