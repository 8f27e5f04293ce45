"""Storage that outlives clusters, as Pulumi components. Imports nothing of cloudgpu: plain `pulumi up` works too."""
