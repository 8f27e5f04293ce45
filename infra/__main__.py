"""Pulumi program that creates a GPU cluster on AWS."""

import pulumi

from gpu_cluster.cluster import GpuCluster
from gpu_cluster.settings import ClusterArgs

args = ClusterArgs.read(pulumi.Config("cloudgpu"))
for name, value in GpuCluster(args.cluster, args).exports().items():
    pulumi.export(name, value)
