"""Network variables of the ranks, by instance type."""

import pytest

from cloudgpu.catalog import load
from cloudgpu.catalog.nccl_variables import has_efa, rank_variables

TYPES = load().types


@pytest.mark.parametrize("name", sorted(TYPES))
def test_has_efa_matches_catalog(name: str) -> None:
    assert has_efa(name) == bool(TYPES[name].efa_interfaces)


@pytest.mark.parametrize(
    ("instance_type", "nodes", "network", "expected"),
    [
        ("p3dn.24xlarge", 1, "auto", {}),
        ("p3dn.24xlarge", 2, "auto", {"FI_EFA_USE_HUGE_PAGE": "0"}),
        ("p4d.24xlarge", 2, "auto", {}),
        ("p5.48xlarge", 2, "efa", {}),
        ("g5.12xlarge", 1, "auto", {"NCCL_SHM_USE_CUDA_MEMCPY": "1"}),
        ("ecs.sccgn6.24xlarge", 2, "auto", {"NCCL_IB_HCA": "mlx5", "NCCL_IB_GID_INDEX": "3"}),
        ("ecs.sccgn6.24xlarge", 1, "auto", {}),
    ],
)
def test_rank_variables_match_instance_type_and_network(
    instance_type: str, nodes: int, network: str, expected: dict[str, str]
) -> None:
    found = rank_variables(instance_type, nodes, network)
    assert {one.name: one.value for one in found} == expected
    assert all(one.why for one in found)


def test_tcp_network_forces_socket_transport() -> None:
    assert {one.name for one in rank_variables("p4d.24xlarge", 2, "tcp")} == {
        "NCCL_NET",
        "NCCL_SOCKET_IFNAME",
        "NCCL_SOCKET_NTHREADS",
        "NCCL_NSOCKS_PERTHREAD",
    }
    assert "NCCL_NET" not in {one.name for one in rank_variables("g4dn.xlarge", 2, "tcp")}


def test_variables_set_by_recipe_are_not_repeated() -> None:
    left = rank_variables("g4dn.xlarge", 2, "auto", {"NCCL_SOCKET_IFNAME": "ens5"})
    assert [one.name for one in left] == ["NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"]
