"""Test cases for the checks of cost, addresses and the account."""

from dataclasses import replace
from datetime import date

from cloudgpu.plan.named_resources import Lookups, NamedResource, ProfileSeen
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.subnets import RegionNetwork
from tests.unit.plan.checks.worlds import (
    TWO,
    PlanInputs,
    fails,
    in_block,
    looked_up,
    named,
    quota,
    rehearsed,
    resources,
    row,
    spot,
)

PASS_ROLE = "your identity needs iam:PassRole for role gpu with iam:PassedToService ec2.amazonaws.com"
SPOT = {**TWO, "market": "spot"}

QUOTA_REQUEST = (
    "`aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-417A185B "
    "--desired-value 192 --region us-east-1`"
)
QUOTA_PAGE = "https://us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-417A185B"


def worked(images):
    """Plan work of `images` images at 100 img/s with an expiry of two hours."""
    reference = {"value": 100, "on": "8 x V100", "source": "a test"}
    metric = {"pattern": "v=(?P<value>[0-9.]+)", "unit": "img/s", "better": "higher", "reference": reference}
    return PlanInputs(
        {
            "metrics": {"speed": metric},
            "work": {"metric": "speed", "amount": images},
            "budget": {"max_usd": 999, "expiry": "2h"},
        }
    )


MONEY = (
    row(
        "budget",
        PlanInputs(),
        fails(
            in_block_without_cap := PlanInputs(
                {"resources": in_block().recipe["resources"], "budget": {}, "outputs": ["o/"]}, in_block().quotes
            ),
            (
                "note",
                f"budget.max_usd is not set; the worst case is {in_block_without_cap.plan().worst_case_usd} USD",
                "",
            ),
        ),
    ),
    row(
        "expiry",
        (
            PlanInputs({"budget": {"max_usd": 999, "expiry": "10m"}}),
            rehearsed(PlanInputs({"budget": {"expiry": "1m"}})),
        ),
        fails(
            PlanInputs({"budget": {"max_usd": 999, "expiry": "9m"}}),
            ("warning", "the expiry is 9m, but nodes need several minutes to boot", "--set budget.expiry=10m"),
        ),
    ),
    row(
        "expected-time",
        (PlanInputs(), worked(720_000)),
        fails(
            worked(720_025),
            (
                "warning",
                "the work takes 2h1m at the reference rate, but the nodes terminate after 2h",
                "--set budget.expiry=2h1m",
            ),
        ),
    ),
    row(
        "price-age",
        replace(PlanInputs(), today=date(2026, 8, 1)),
        fails(
            replace(PlanInputs(), today=date(2026, 12, 1)),
            ("warning", "the oldest price was read on 2026-07-20, 134 days ago", ""),
        ),
    ),
)

NETWORK = (
    row(
        "address",
        (PlanInputs(), resources(instance_type="p4d.24xlarge", nodes=1)),
        fails(
            replace(PlanInputs(), network=NetworkRequest("private")),
            (
                "error",
                "public_address is private, but no subnet_id specifies a subnet whose private addresses you can reach",
                "change one of the settings: `cloudgpu config`",
            ),
        ),
        fails(
            replace(resources(instance_type="p5.48xlarge"), quotes=Quotes(live=True, free_addresses={"us-east-1": 1})),
            (
                "error",
                "p5.48xlarge needs 2 Elastic IPs in us-east-1, but the account can allocate only 1 more there",
                "request a higher quota in Service Quotas (L-0263D0A3), or release unused Elastic IPs",
            ),
        ),
    ),
    row(
        "subnets",
        PlanInputs(),
        fails(
            replace(PlanInputs(), quotes=Quotes(live=True, networks={"us-east-1": RegionNetwork(unknown="denied")})),
            ("unknown", "cannot tell in which subnets nodes can be reached in us-east-1: denied", ""),
        ),
    ),
    row(
        "interfaces",
        PlanInputs(),
        fails(
            resources(instance_type="p5.48xlarge"),
            (
                "note",
                "p5.48xlarge has 32 EFA interfaces, so EC2 does not assign a public address: "
                "each node gets an Elastic IP",
                "",
            ),
        ),
        fails(
            replace(resources(instance_type="p5.48xlarge"), network=NetworkRequest(own_subnet=True, own_network=True)),
            (
                "note",
                "p5.48xlarge has 32 EFA interfaces, so EC2 does not assign a public address: "
                "nodes are reached at their private addresses",
                "",
            ),
        ),
    ),
    row(
        "fabric",
        (PlanInputs(), resources(instance_type="g5.xlarge", nodes=1)),
        fails(
            resources(instance_type="p3dn.24xlarge", network="tcp"),
            (
                "warning",
                "p3dn.24xlarge has EFA, but resources.network is tcp: the nodes communicate over TCP, 100 Gb/s at most",
                "--set resources.network=auto",
            ),
        ),
        fails(
            resources(instance_type="g5.xlarge"),
            ("note", "g5.xlarge has no EFA: the nodes communicate over TCP, 10 Gb/s at most", ""),
        ),
    ),
)

ACCOUNT = (
    row(
        "quota",
        (quota(192), quota(192, nodes=1), in_block(), PlanInputs(quotes=Quotes())),
        fails(
            quota(96),
            (
                "error",
                "2 x p3dn.24xlarge need 192 vCPUs in us-east-1, "
                "but Running On-Demand P instances (L-417A185B) allow only 96",
                f"--set resources.nodes=1, or request a quota of 192 vCPUs with {QUOTA_REQUEST}",
            ),
        ),
        fails(
            quota(64),
            (
                "error",
                "2 x p3dn.24xlarge need 192 vCPUs in us-east-1, "
                "but Running On-Demand P instances (L-417A185B) allow only 64",
                f"request a quota of 192 vCPUs with {QUOTA_REQUEST}",
            ),
        ),
        fails(
            quota(384, 256),
            (
                "warning",
                "Running On-Demand P instances (L-417A185B) in us-east-1: 256 of 384 vCPUs are in "
                "use, but 192 are needed",
                f"terminate running instances, or request a higher quota at {QUOTA_PAGE}",
            ),
        ),
        fails(
            quota(384, None),
            (
                "unknown",
                "Running On-Demand P instances (L-417A185B) in us-east-1: 192 of 384 vCPUs are "
                "needed, but the usage is unknown",
                "",
            ),
        ),
        fails(
            PlanInputs(),
            (
                "unknown",
                "Running On-Demand P instances (L-417A185B) in us-east-1: the limit is unknown, and "
                "192 vCPUs are needed",
                f"see {QUOTA_PAGE}",
            ),
        ),
    ),
    row(
        "region-enabled",
        (PlanInputs(), looked_up(Lookups(enabled_regions=frozenset({"us-east-1"})))),
        fails(
            looked_up(Lookups(enabled_regions=frozenset({"us-west-2"}))),
            (
                "error",
                "us-east-1 is not enabled for this account",
                "`aws account enable-region --region-name us-east-1`, or choose another region",
            ),
        ),
    ),
    row(
        "spot-role",
        (
            PlanInputs(),
            spot(),
            looked_up(Lookups(service_roles=frozenset()), resources=TWO),
            looked_up(Lookups(service_roles=frozenset({"AWSServiceRoleForEC2Spot"})), resources=SPOT),
        ),
        fails(
            looked_up(Lookups(service_roles=frozenset()), resources=SPOT),
            (
                "warning",
                "the account has no role AWSServiceRoleForEC2Spot: spot launches fail, unless your identity may "
                "create it",
                "run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com` once",
            ),
        ),
        fails(
            looked_up(Lookups(service_roles_unknown="not allowed"), resources=SPOT),
            (
                "unknown",
                "cannot tell whether the account has the role AWSServiceRoleForEC2Spot: not allowed",
                "",
            ),
        ),
    ),
    row(
        "named",
        named(NamedResource("key pair", "ann", "us-east-1", "there", setting="key_name")),
        fails(
            named(NamedResource("key pair", "ann", "us-east-1", "missing", setting="key_name")),
            (
                "error",
                "key pair ann does not exist in us-east-1",
                "correct the setting key_name: `cloudgpu config`",
            ),
        ),
        fails(
            named(NamedResource("role", "gpu", "", "unknown", "iam:GetRole is denied", "role_name")),
            ("unknown", "cannot tell whether role gpu exists: iam:GetRole is denied", ""),
        ),
    ),
    row(
        "instance-profile",
        (PlanInputs(), looked_up(Lookups(profile=ProfileSeen("gpu", may_pass=True, why="", node_lacks=())))),
        fails(
            looked_up(Lookups(profile=ProfileSeen("", may_pass=None, why=""))),
            ("error", "the instance profile has no role, so nodes get no credentials", "add a role to the profile"),
        ),
        fails(
            looked_up(Lookups(profile=ProfileSeen("gpu", may_pass=None, why="not allowed", node_lacks=()))),
            ("unknown", "cannot tell whether you may launch nodes with role gpu: not allowed", PASS_ROLE),
        ),
        fails(
            looked_up(Lookups(profile=ProfileSeen("gpu", False, "IAM policy simulation: implicitDeny", ()))),
            ("error", "you may not launch nodes with role gpu (IAM policy simulation: implicitDeny)", PASS_ROLE),
        ),
        fails(
            looked_up(Lookups(profile=ProfileSeen("gpu", True, "", ("ssmmessages:CreateDataChannel",)))),
            ("error", "role gpu does not allow ssmmessages:CreateDataChannel, which reach = ssm needs", ""),
        ),
        fails(
            looked_up(Lookups(profile=ProfileSeen("gpu", True, "", None))),
            (
                "unknown",
                "cannot tell whether role gpu allows Session Manager",
                "it must allow the actions in docs/explanation/provisioning.md",
            ),
        ),
    ),
    row(
        "role-permissions",
        PlanInputs(),
        fails(
            looked_up(Lookups(denied_role_actions=("iam:CreateInstanceProfile", "iam:CreateRole"))),
            (
                "warning",
                "your policies deny iam:CreateInstanceProfile, iam:CreateRole, which create the roles of a cluster "
                "(IAM policy simulation)",
                "set instance_profile, and expiry_schedule_role or expiry_schedule = false, to use existing roles",
            ),
        ),
    ),
    row(
        "tags",
        PlanInputs(),
        fails(
            looked_up(Lookups(tags_problem="40 tags: too many")),
            ("error", "the tags of the settings and the recipe: 40 tags: too many", "remove some of them"),
        ),
    ),
    row(
        "region-origin",
        (
            PlanInputs(),
            looked_up(Lookups(region_origin="flag --region"), resources={**TWO, "regions": ["eu-west-1"]}),
            looked_up(Lookups(region_origin=""), resources={**TWO, "zones": ["us-east-1a"]}),
        ),
        fails(
            looked_up(Lookups(region_origin="environment AWS_REGION")),
            ("note", "region us-east-1: environment AWS_REGION", ""),
        ),
        fails(
            looked_up(Lookups(region_origin="")),
            (
                "note",
                "region us-east-1: the default, because no setting names one",
                "set the region in the settings, in AWS_REGION or in your AWS profile, or use --region",
            ),
        ),
    ),
    row(
        "zones",
        (PlanInputs(), PlanInputs(quotes=Quotes(live=True, zones_unknown={"eu-west-1": "denied"}))),
        fails(
            PlanInputs(quotes=Quotes(live=True, zones_unknown={"us-east-1": "not allowed to ask"})),
            (
                "unknown",
                "cannot tell which zones of us-east-1 offer the types, so the catalog's zones are tried: "
                "not allowed to ask",
                "",
            ),
        ),
    ),
    row(
        "offline",
        PlanInputs(),
        fails(
            PlanInputs({"data": [{"name": "a", "from": "s3://bucket/a/", "to": "/a"}]}, Quotes()),
            (
                "unknown",
                "planned offline, without querying zones, subnets, machine images, quotas, data in S3",
                "plan without --offline",
            ),
        ),
    ),
)
