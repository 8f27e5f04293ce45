"""A GPU cluster as Pulumi components. Does not import cloudgpu, so plain `pulumi up` works too."""
