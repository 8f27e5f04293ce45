"""ResNet, version 1.5: the one that published figures are for, with the stride in the 3x3 convolution."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

RESNET_50 = (3, 4, 6, 3)
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, and the way around them."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = width * EXPANSION
        self.body = nn.Sequential(
            *convolution(inside, width, 1),
            nn.ReLU(inplace=True),
            *convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *convolution(width, outside, 1),
        )
        self.around = nn.Identity()
        if stride != 1 or inside != outside:
            self.around = nn.Sequential(*convolution(inside, outside, 1, stride))
        last = self.body[-1]
        assert isinstance(last, nn.BatchNorm2d)
        nn.init.zeros_(last.weight)  # every block begins as its way around, which lets large batches start

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.around(x))


def resnet(classes: int = 1000, blocks: Sequence[int] = RESNET_50, width: int = 64) -> nn.Sequential:
    """The network with fresh weights: 25.6 million of them for 1,000 classes in ResNet-50."""
    stages: list[nn.Module] = []
    inside = width
    for stage, count in enumerate(blocks):
        middle = width * 2**stage
        for block in range(count):
            stages.append(Bottleneck(inside, middle, stride=2 if stage and not block else 1))
            inside = middle * EXPANSION
    net = nn.Sequential(
        *convolution(3, width, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inside, classes),
    )
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


def convolution(inside: int, outside: int, size: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    return nn.Conv2d(inside, outside, size, stride, size // 2, bias=False), nn.BatchNorm2d(outside)
