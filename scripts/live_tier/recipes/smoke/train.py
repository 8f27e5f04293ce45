"""Train a small network on two interleaved spirals, and write down what it ran on: GPU, driver, CUDA, container."""

import argparse
import json
import platform
import subprocess
from pathlib import Path

import torch

STEPS = 800
POINTS = 2000
TURNS = 1.5


def spirals(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of two spirals, shape (POINTS, 2), and the spiral of each, shape (POINTS,)."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(POINTS) % 2
    radius = torch.rand(POINTS, generator=generator) * 0.9 + 0.1
    angle = radius * TURNS * 2 * torch.pi + labels * torch.pi
    points = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
    points += torch.randn(points.shape, generator=generator) * 0.01
    return points.to(device), labels.to(device)


def train(device: torch.device) -> tuple[float, float]:
    """Return the loss and the accuracy on the training points after the last step."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)
    ).to(device)
    points, labels = spirals(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(points), labels)
        loss.backward()
        optimizer.step()
    accuracy = (network(points).argmax(dim=1) == labels).float().mean()
    return float(loss.detach()), float(accuracy)


def driver_version() -> str:
    """Return the version of the NVIDIA driver; empty without a driver."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.split("\n")[0].strip()


def facts(device: torch.device) -> dict[str, object]:
    """Return what the network was trained on."""
    cuda = device.type == "cuda"
    return {
        "gpu": torch.cuda.get_device_name(device) if cuda else "",
        "driver": driver_version(),
        "cuda": (torch.version.cuda or "") if cuda else "",
        "container": Path("/.dockerenv").exists(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    """Train, print the metrics, and write the facts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", type=Path, required=True)
    outputs = parser.parse_args().outputs
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    loss, accuracy = train(device)
    outputs.mkdir(parents=True, exist_ok=True)
    (outputs / "facts.json").write_text(json.dumps(facts(device), indent=2) + "\n")
    print(f"loss={loss:.4f} accuracy={accuracy:.4f} cuda={int(device.type == 'cuda')}", flush=True)


if __name__ == "__main__":
    main()
