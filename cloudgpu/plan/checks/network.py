"""How the nodes are reached, and how they reach each other."""

from collections.abc import Iterator

from cloudgpu.catalog.network_prices import network_prices
from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.plan.reaching import contradiction, explained


@check("address", "error", "Nodes that come up and cannot be reached cost money all the same; addresses cost some too.")
def reachable(case: Case) -> Iterator[Found]:
    """Which address the nodes get, where EC2 gives none by itself, and what that costs."""
    wrong = contradiction(case.question.network)
    if wrong:
        yield Found(wrong, "change one of the settings: `cloudgpu config`")
        return
    prices = network_prices()
    for name, way in dict.fromkeys((one.instance_type, one.public_address) for one in case.field.candidates):
        for line in explained(way, case.plan.nodes, case.plan.expiry_s, prices):
            yield Found(f"{name}: {line}", severity="note")
