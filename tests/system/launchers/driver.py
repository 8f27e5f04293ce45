"""Run the middle part of `train` on running hosts, as a process in the network that reaches them.

`python -m tests.system.launchers.driver REQUEST.json`; the request contains the recipe, the key and the nodes. Prints a
JSON line for every output line of a rank, and finally one for the result.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from cloudgpu.clock import SystemClock
from cloudgpu.launch.inventory import Inventory
from cloudgpu.paths import Home
from cloudgpu.recipe.loader import load, resolve
from cloudgpu.run.agent import install_agent
from cloudgpu.run.agent_messages import Chunk, Verdict
from cloudgpu.run.containers import provide_image
from cloudgpu.run.follow import follow
from cloudgpu.run.job import Job
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.stage import send_workdir, stage_job
from cloudgpu.run.start import new_gang_token, secret_values, start
from cloudgpu.ssh.connection import connect


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    loaded = load(Path(request["recipe"]))
    recipe = resolve(loaded, sets={}, rehearsal=False)
    inventory = Inventory.from_json(request["inventory"])
    job = Job(request["run_id"], recipe, inventory, new_gang_token())
    clock = SystemClock()
    agents = [install_agent(connect(node, Path(request["key"]), clock=clock)) for node in inventory.nodes]
    sent = send_workdir(job, agents, loaded.base, lambda note: None)
    staged = stage_job(job, agents, lambda _: (), loaded.base, lambda note: None, sent_bytes=sent)
    container = recipe.environment.container
    if container is not None:
        staged = replace(staged, images=provide_image(container, agents, None, lambda note: None))
    gang = start(job, agents, staged, secret_values(recipe.environment.secrets, os.environ))
    ranks = {node.node_index: [rank.rank for rank in node.ranks] for node in gang}
    directories = {agent.host.node.index: job.run_dir(agent.home) for agent in agents}
    emit(started=True)
    logs = LogStore(Home(Path(request["home"])).ensure().run(job.run_id))
    for item in follow(agents, ranks, directories, logs, clock):
        if isinstance(item, Chunk):
            for line in item.raw.decode(errors="replace").splitlines():
                emit(rank=item.rank, line=line)
        elif isinstance(item, Verdict):
            emit(state=item.state, reason=item.reason, failed=item.rank)


def emit(**message: object) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
