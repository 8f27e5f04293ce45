"""Services as a plan shows them."""

from cloudgpu.cli.render.plan import service_lines
from cloudgpu.recipe.schema import Recipe


def lines(**launched) -> list[str]:
    sections = {"schema": 1, "name": "web", "resources": {"gpu": "V100:1"}, "launch": {"command": "x", **launched}}
    return list(service_lines(Recipe.model_validate(sections)))


def test_service_and_side_service_show_port_and_readiness():
    board = {"name": "board", "command": "b", "port": 6006}
    service = {"port": 8888, "ready": {"http": "/api", "status": 204, "within": "90s"}}
    assert lines(**{"with": "service"}, service=service, beside=[board]) == [
        "serves port 8888 on the head node, ready when GET /api returns 204, within 1m30s; "
        "it runs until the cluster expires",
        "side service board: port 6006 on the head node, ready when it accepts connections, within 3m",
    ]
    assert lines(**{"with": "service"}, service={"port": 80, "ready": {"http": "/"}, "stays": "command"}) == [
        "serves port 80 on the head node, ready when GET / returns a status below 400, within 3m; "
        "it stops when the command exits"
    ]
    assert lines(**{"with": "torchrun"}) == []
