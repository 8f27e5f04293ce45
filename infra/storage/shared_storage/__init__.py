"""Storage that outlives clusters, as Pulumi components. Imports nothing from cloudgpu: plain `pulumi up` works too."""
