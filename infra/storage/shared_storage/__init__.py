"""Storage that outlives clusters, as Pulumi components. Does not import cloudgpu, so plain `pulumi up` works too."""
