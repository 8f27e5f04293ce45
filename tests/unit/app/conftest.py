"""A scripted cloud in place of `AwsAccount`. Its contents and errors are data, and it records its calls."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from cloudgpu.app.runs.attach import RunWatcher
from cloudgpu.app.runs.train import TrainingRun, TrainRequest
from cloudgpu.aws.ec2.billing_times import Lifetime
from cloudgpu.aws.ec2.tagging import SearchResult
from cloudgpu.aws.session.session import ServerTime
from cloudgpu.backends.aws.backend import AwsBackend
from cloudgpu.backends.aws.clusters.create import Provisioning
from cloudgpu.backends.aws.clusters.delete import Teardown
from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.engine.base import AppliedStack
from cloudgpu.errors import BadRequestError, CloudGpuError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.ledger.store import open_ledger
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.dataset_copies import RemoteFile, S3Service
from cloudgpu.run.progress import Note
from cloudgpu.state.record_store import RecordStore
from tests.fake_host import FakeHost, ScriptedResult
from tests.manual_clock import ManualClock

MARK = "\x1ecloudgpu\x1e"
START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Thing:
    kind: str
    id: str
    region: str
    tags: dict = field(default_factory=dict, hash=False)


@dataclass
class ScriptedEngine:
    cloud: "ScriptedCloud"

    def preview(self, stack):
        return self.cloud.previewed

    def refresh(self, stack):
        return AppliedStack({})

    def drift(self, stack):
        return tuple(self.cloud.drifted)

    def repair_drift(self, stack):
        repaired, self.cloud.drifted = tuple(self.cloud.drifted), ()
        self.cloud.calls.append(("mend", stack.region, repaired))
        return repaired

    def up(self, stack, on_event):
        zone = stack.config["zone"]
        self.cloud.calls.append(("up", stack.region, zone))
        self.cloud.on_event = on_event
        self.cloud.before_up(stack)
        refusal = self.cloud.refusals.get(zone)
        if refusal is not None:
            raise refusal
        nodes = int(stack.config["nodes"])
        ids = [f"i-{zone}-{index}" for index in range(nodes)]
        new = [instance_id for instance_id in ids if self.cloud.alive.get(instance_id) != "running"]
        self.cloud.launches |= dict.fromkeys(new, self.cloud.clock.now())
        self.cloud.alive |= dict.fromkeys(ids, "running")
        return AppliedStack({"instanceIds": ids})

    def destroy(self, stack, on_event):
        self.cloud.calls.append(("destroy", stack.region, ""))
        if self.cloud.destroy_fails is not None:
            raise self.cloud.destroy_fails
        for instance_id, state in self.cloud.alive.items():
            if state == "running":
                self.cloud.ends[instance_id] = self.cloud.clock.now()
            self.cloud.alive[instance_id] = "terminated"


class NoStorage:
    def found(self, region, name=""):
        return []


@dataclass
class ScriptedCloud:
    target: str = "rehearsal"
    endpoint: str = "rehearsal:KEY"
    requested_engine: str = ""
    refusals: dict = field(default_factory=dict)
    alive: dict = field(default_factory=dict)
    calls: list = field(default_factory=list)
    orphans: list = field(default_factory=list)
    stubborn: list = field(default_factory=list)
    ended: list = field(default_factory=list)
    """Terminated instances, which AWS keeps listing for an hour."""
    destroy_fails: Exception | None = None
    account_id: str = "111122223333"
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    launches: dict = field(default_factory=dict)
    ends: dict = field(default_factory=dict)
    """Instance id -> end time, if the cloud provides it; None for an instance that is no longer listed."""
    network: list = field(default_factory=list)
    stored: dict = field(default_factory=dict)
    """S3 URL -> number of objects, or the error of a listing."""
    previewed: tuple = ()
    drifted: tuple = ()
    cidr: object = "127.0.0.1/32"
    searched: list = field(default_factory=list)
    stores: object = field(default_factory=NoStorage)
    on_event: object = None
    before_up: object = staticmethod(lambda stack: None)
    program_settings: dict = field(default_factory=dict)

    def account(self):
        return self.account_id

    def engine(self, record):
        return ScriptedEngine(self)

    @property
    def storage(self):
        return self.stores

    @property
    def new_nodes(self):
        return self

    def put_objects(self, url, source):
        return 0

    def objects(self, url, *, expires_s):
        found = self.stored.get(url)
        if isinstance(found, Exception):
            raise found
        if found == 0:
            raise BadRequestError(f"there are no objects under {url}", code="NoSuchKey")
        return [RemoteFile(f"{url}/{index}", str(index), 1, None) for index in range(found or 0)]

    def bucket_service(self, url):
        return S3Service()

    def quota_limits(self, region):
        return {}

    def running_vcpus(self, region):
        return {}

    def networks(self, regions, request):
        return {}

    def image_ids(self, wanted):
        return {}

    def machine_images(self, wanted):
        return {}

    def caller_cidr(self):
        if isinstance(self.cidr, Exception):
            raise self.cidr
        return self.cidr

    def inventory(self, record, instance_ids, emit):
        nodes = tuple(node(index, instance_id, record.placement.zone) for index, instance_id in enumerate(instance_ids))
        return Inventory(record.name, nodes)

    def console(self, region, instance_id):
        return f"console of {instance_id} in {region}\r\n"

    def instance_states(self, region, instance_ids):
        return {instance_id: self.alive.get(instance_id, "terminated") for instance_id in instance_ids}

    @property
    def time(self):
        return ServerTime(self.clock)

    def lifetimes(self, region, instance_ids):
        listed = [
            instance_id
            for instance_id in instance_ids
            if instance_id in self.alive and self.ends.get(instance_id, 0) is not None
        ]
        return {instance_id: self._lifetime(instance_id) for instance_id in listed}

    def _lifetime(self, instance_id):
        alive = self.alive[instance_id] == "running"
        return Lifetime(
            "instance",
            instance_id,
            alive,
            self.launches.get(instance_id),
            None if alive else self.ends.get(instance_id),
        )

    def network_lifetimes(self, region, token):
        return tuple(self.network)

    def search(self, cluster, regions):
        self.searched.append(tuple(regions))
        return [resource for resource in (*self.orphans, *self.stubborn) if resource.region in (*regions, "global")]

    def search_each(self, cluster, regions):
        result = SearchResult()
        for region in regions:
            try:
                found = tuple(resource for resource in self.search(cluster, [region]) if resource.region == region)
                ended = tuple(resource for resource in self.ended if resource.region == region)
                result = result.merged(SearchResult(found, terminated=ended))
            except CloudGpuError as err:
                result = result.merged(SearchResult(failures={region: err}))
        return result

    def search_all_clusters(self, region):
        try:
            return SearchResult(tuple(self.anybodys(region)))
        except CloudGpuError as err:
            return SearchResult(failures={region: err})

    def regions(self):
        return ("eu-west-1", "us-east-1", "us-west-2")

    def terminate(self, region, instance_ids, on_wait=None):
        self.calls.append(("terminate", region, tuple(instance_ids)))
        for instance_id in instance_ids:
            if self.alive.get(instance_id) == "running":
                self.ends[instance_id] = self.clock.now()
            self.alive[instance_id] = "terminated"

    def retag(self, found, tags):
        self.calls.append(("retag", tuple(resource.id for resource in found), dict(tags)))

    def release(self, found, on_wait=None):
        self.calls.append(("release", "", tuple(resource.id for resource in found)))
        self.ended += [resource for resource in found if resource.kind == "instance"]
        self.orphans = [resource for resource in self.orphans if resource not in found]


def node(index, instance_id="i-0", zone="us-east-1c", **changes):
    base = Node(index, instance_id, "127.0.0.1", 2222, "ubuntu", ("SHA256:x",), "127.0.0.1", "p3dn.24xlarge", zone,
                "V100", 8, True)  # fmt: skip
    return replace(base, **changes)


def candidate(zone="us-east-1c", price="31.212", market="on-demand", instance_type="p3dn.24xlarge"):
    return Candidate(
        instance_type, zone[:-1], zone, market, Decimal(price), date(2026, 7, 20), "V100", 8, Decimal(32), 1, "ami-1"
    )


def plan_of(*candidates, nodes=2, findings=(), expiry_s=3600, **sections):
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "quickstart",
            "resources": {"instance_type": "p3dn.24xlarge", "nodes": nodes},
            "launch": {"with": "torchrun", "command": "train.py", "ranks_per_node": 2},
            "metrics": {"accuracy": {"pattern": r"accuracy=(?P<value>\S+)", "better": "higher", "at_least": 0.5}},
            **sections,
        }
    )
    return Plan("rehearsal", recipe, "digest", nodes, 1, tuple(candidates), tuple(findings), expiry_s, False)


@dataclass
class Workspace:
    """Everything that a use case needs, with a scripted cloud and a manual clock."""

    cloud: ScriptedCloud
    home: Home
    records: RecordStore
    ledger: object
    clock: ManualClock
    heard: list
    owner: str = "ann"
    gang: object = None

    @property
    def notes(self):
        return [event.text for event in self.heard if isinstance(event, Note)]

    @property
    def context(self):
        plain = Context(self.backend, self.ledger, self.records, self.home, self.clock, self.owner, self.heard.append)
        return self.backend.context(plain)

    @property
    def backend(self):
        return AwsBackend(
            (self.cloud.target, "the scripted cloud"), self.home, self.clock, lambda: self.cloud, lambda: self
        )

    def connect(self, nodes, emit):
        return self.gang.connect(nodes, emit)

    @property
    def provisioning(self):
        return Provisioning(self.context, Requester(self.owner, "vision", "ssh-ed25519 AAAA"))

    @property
    def teardown(self):
        return Teardown(self.context)


@dataclass
class Gang:
    """The nodes of a scripted cluster: in-memory hosts whose agents return what a test specifies."""

    workspace: "Workspace"
    hosts: dict = field(default_factory=dict)
    dialled: list = field(default_factory=list)
    ended: dict = field(default_factory=dict)
    before: dict = field(default_factory=dict)
    """Verb -> function that runs before node 0 responds."""
    busy: list = field(default_factory=list)
    """Other runs in progress on the nodes."""
    uncopied: tuple = ()
    """Output of a stopped run that was not copied before."""
    ranks: list = field(default_factory=list)
    """Ranks in the final status of every node, with the times at which they started and ended."""
    stopped: set = field(default_factory=set)
    """Indexes of the nodes whose last run was stopped."""

    def connect(self, nodes, emit):
        self.dialled.append([node.instance_id for node in nodes])
        return [self.hosts.setdefault(node.instance_id, self._host(node)) for node in nodes]

    def tell(self, state="succeeded", lines=("accuracy=0.97",), **first_failure):
        """Set the output of every rank and its final state."""
        for host in self.hosts.values():
            self._script(host, state, lines, first_failure)
        self.ended = {"state": state, "lines": lines, "first_failure": first_failure}

    def _host(self, node):
        host = FakeHost(node)
        home = "/home/ubuntu"
        host.on("").on("printf .*cloudgpu", ScriptedResult(stdout=f"Welcome!\n{MARK}{home}{MARK}{MARK}"))
        facts = {"python": "3.11.2", "bootstrap": "done", "disk_free_mib": 5000, "gpus": [{"name": "V100"}] * 8}
        host.on(" probe$", ScriptedResult(reply=lambda _: self._happens("probe", node) or json.dumps(facts) + "\n"))
        host.on(" start$", ScriptedResult(reply=lambda stdin: self._happens("start", node) or self._start(host, stdin)))
        host.on(" busy$", ScriptedResult(reply=lambda _: self._happens("busy", node) or self._busy()))
        host.on(
            r"lib/cloudgpu/expiry", ScriptedResult(reply=lambda _: self._happens("extend", node) or self._armed(host))
        )
        host.on(" stop$", ScriptedResult(reply=lambda _: self._stopped(host)))
        host.files[f"{home}/.cloudgpu/runs/RUN/work/outputs/metrics.json"] = b"{}"
        self._run_as_told(host)
        return host

    def _run_as_told(self, host):
        self._script(host, **({"state": "succeeded", "lines": ("accuracy=0.97",), "first_failure": {}} | self.ended))

    def _busy(self):
        return json.dumps({"runs": self.busy}) + "\n"

    def _start(self, host, stdin):
        if self.busy and json.loads(stdin)["alone"]:
            return json.dumps({"error": f"run {self.busy[0]} is in progress on this node", "code": "busy"}) + "\n"
        if host.node.index in self.stopped:  # that was another run
            self.stopped.remove(host.node.index)
            self._run_as_told(host)
        return '{"state": "starting"}\n'

    def _armed(self, host):
        """Confirm the expiry that was sent to the node."""
        return f"cloudgpu: this node ends itself at {host.sent[-1].text.split()[-1]}\n"

    def _stopped(self, host):
        self.stopped.add(host.node.index)
        self._script(host, "cancelled", self.uncopied, {})
        return '{"state": "cancelled"}\n'

    def _script(self, host, state, lines, first_failure):
        rank = 2 * host.node.index
        text = "".join(f"{line}\n" for line in lines)
        status = {"state": state, "first_failure": first_failure or None, "ranks": self.ranks}

        def follow(stdin):
            request = json.loads(stdin)
            self._happens("copy" if request.get("once") else "follow", host.node)
            offset = request["offsets"][str(rank)]
            rest = text.encode()[offset:].decode()
            chunk = {"rank": rank, "offset": offset, "bytes": len(rest), "data": rest}
            end = {"copied": True} if request.get("once") else {"status": status}
            return "".join(json.dumps(message) + "\n" for message in ([chunk] if rest else []) + [end])

        host.on(" follow$", ScriptedResult(reply=follow))

    def _happens(self, verb, node):
        if node.index == 0 and verb in self.before:
            self.before[verb]()


@pytest.fixture
def gang(workspace):
    workspace.gang = Gang(workspace)
    return workspace.gang


@pytest.fixture
def training(workspace, gang, tmp_path):
    """Run `train` with the given candidates and options."""

    def train(*candidates, cluster="", expiry_s=3600, sections=None, **request):
        work = tmp_path / "recipe"
        work.mkdir(exist_ok=True)
        (work / "train.py").write_text("print(1)")
        plan = plan_of(*(candidates or [candidate()]), expiry_s=expiry_s, **(sections or {}))
        requester = Requester(workspace.owner, "vision", "ssh-ed25519 AAAA")
        wanted = TrainRequest(plan=plan, recipe_path=work / "recipe.yaml", base=work, cluster=cluster, **request)
        return TrainingRun(workspace.context, requester).train(wanted)

    return train


@pytest.fixture
def watching(workspace, gang):
    return RunWatcher(workspace.context)


@pytest.fixture
def workspace(tmp_path: Path):
    home = Home(tmp_path / "home").ensure()
    ledger = open_ledger(f"sqlite:///{home.ledger_db}")
    clock = ManualClock(START)
    yield Workspace(ScriptedCloud(clock=clock), home, RecordStore(home), ledger, clock, [])
    ledger.engine.dispose()


@pytest.fixture
def make():
    """Factories for plans and their parts."""

    class Make:
        plan = staticmethod(plan_of)
        candidate = staticmethod(candidate)
        node = staticmethod(node)
        thing = Thing
        replace = staticmethod(replace)

    return Make
