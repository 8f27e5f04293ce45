"""All-reduce bandwidth by size: NVIDIA's nccl-tests where they are in the image, or the same measure by PyTorch.

Started once a rank, by mpirun or with torchrun's environment. Rank 0 prints nccl-tests' table, then a line with the
figures, the transport that NCCL really used, and the share of what was measured elsewhere on such a cluster.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import plot
import table
import transport

WORDS = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "world": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"),
}
"""What torchrun's environment and Open MPI call these."""


def main() -> None:
    arguments = parse_arguments()
    place = {name: of_environment(names, int(name == "world")) for name, names in WORDS.items()}
    arguments.outputs.mkdir(parents=True, exist_ok=True)
    log = tell_nccl_to_say(arguments.outputs)
    if arguments.program == "torch":
        rows, backend = by_torch(arguments, place)
    else:
        rows, backend = by_nccl_tests(arguments, place["rank"]), "nccl"
    if place["rank"] == 0:
        went = transport.used(said(log)) if backend == "nccl" else (transport.TCP, 0)
        report(arguments, rows, place["world"], went)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="torch", help="torch, or a program of nccl-tests: all_reduce_perf")
    parser.add_argument("--from", dest="first", default="8", help="smallest size, for instance 8 or 64K")
    parser.add_argument("--to", dest="last", default="1G", help="largest size")
    parser.add_argument("--factor", type=int, default=2, help="from one size to the next")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--network", choices=["auto", "efa", "tcp"], default="auto", help="what it must go through")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    return parser.parse_args()


def of_environment(names: tuple[str, ...], default: int) -> int:
    return int(next((os.environ[name] for name in names if name in os.environ), default))


def tell_nccl_to_say(outputs: Path) -> Path:
    """Have NCCL write down what it does, beside the table instead of in the middle of it, and return where.

    Between nodes cloudgpu has already said so, and reads the same files.
    """
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET")
    return Path(os.environ.setdefault("NCCL_DEBUG_FILE", str(outputs / "nccl-%h-%p.log")))


def said(log: Path) -> Iterator[str]:
    """What NCCL wrote on this node. NCCL puts host and process in place of `%h` and `%p`."""
    for path in sorted(log.parent.glob(log.name.replace("%h", "*").replace("%p", "*"))):
        yield from path.read_text(errors="replace").splitlines()


def by_nccl_tests(arguments: argparse.Namespace, rank: int) -> list[table.Row]:
    """Start this rank of nccl-tests: it finds MPI's environment as we did. The table goes to the log as it comes."""
    command = [arguments.program, "-b", arguments.first, "-e", arguments.last, "-f", str(arguments.factor)]
    command += ["-n", str(arguments.iterations), "-w", str(arguments.warm_up), "-g", "1", "-c", "1"]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)
    except FileNotFoundError:
        hint = "images/nccl-tests has it, or measure with PyTorch: --set program=torch"
        raise SystemExit(f"there is no {arguments.program} here; {hint}") from None
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        print(line, end="", flush=True)
    if process.wait():
        raise SystemExit(f"{arguments.program} of rank {rank} ended with exit code {process.returncode}")
    return table.read(lines)


def by_torch(arguments: argparse.Namespace, place: dict[str, int]) -> tuple[list[table.Row], str]:
    try:
        sizes = table.sizes(arguments.first, arguments.last, arguments.factor)
        from bytorch import Measure, all_reduce  # noqa: PLC0415 - nccl-tests' image has no PyTorch
    except ValueError as error:
        raise SystemExit(str(error)) from error
    except ImportError as error:
        raise SystemExit("there is no PyTorch here; with nccl-tests: --set program=all_reduce_perf") from error
    return all_reduce(Measure(**place, iterations=arguments.iterations, warm_up=arguments.warm_up), sizes)


def report(arguments: argparse.Namespace, rows: list[table.Row], world: int, went: tuple[str, int]) -> None:
    """The figures in one line, and as files; then what must not be passed over in silence."""
    if not rows:
        raise SystemExit(f"{arguments.program} printed no table")
    nodes, kind = int(os.environ.get("CLOUDGPU_NUM_NODES", "1")), transport.instance_type()
    best, (name, channels) = table.peak(rows), went
    expected = table.EXPECTED.get((kind, nodes))
    title = f"all-reduce, {world} ranks, nodes: {nodes}" + (f", {kind}" if expected else "")
    (arguments.outputs / "busbw.svg").write_text(plot.svg(rows, title, expected))
    figures = {"busbw": best.busbw, "size": best.size, "average_busbw": table.average(rows), "transport": name}
    whole = {**figures, "channels": channels, "ranks": world, "nodes": nodes, "rows": [vars(one) for one in rows]}
    (arguments.outputs / "metrics.json").write_text(json.dumps(whole, indent=2) + "\n")
    over_efa = int(name == transport.EFA)
    print(f"busbw={best.busbw:.4f} size={best.size} over_efa={over_efa} transport={name or 'unknown'}", flush=True)
    if expected:
        share = 100 * best.busbw / expected.busbw
        print(f"share_of_expected={share:.1f} of {expected.busbw:g} GB/s ({expected.source})", flush=True)
    wrong = sum(one.wrong or 0 for one in rows)
    if wrong:
        raise SystemExit(f"{wrong} values came out wrong: memory or links of this cluster are not to be trusted")
    # With resources.network: tcp the ranks are told to use sockets, on nodes that have EFA as well.
    told = "tcp" if os.environ.get("NCCL_NET") == "Socket" else "auto"
    asked = arguments.network if arguments.network != "auto" else told
    missed = transport.problem(name, nodes=nodes, has_efa=transport.efa_here(), asked=asked)
    if missed:
        raise SystemExit(missed)


if __name__ == "__main__":
    main()
