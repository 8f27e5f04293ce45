"""Pulumi program that creates GPU nodes on Alibaba Cloud."""

import pulumi

from alibaba_cluster.cluster import AlibabaCluster
from alibaba_cluster.settings import AlibabaArgs

args = AlibabaArgs.read(pulumi.Config("cloudgpu"))
for name, value in AlibabaCluster(args.cluster, args).exports().items():
    pulumi.export(name, value)
