"""ResNet-18 (He et al., 2016) with group norms: 11.2 M parameters, 44.7 MB of gradients.

A group norm does not depend on the other images of a batch. So a batch has the same gradients however many
ranks share it, and there are no buffers that ranks would have to synchronize.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn

#: Channels that are normalized together (Wu and He, 2018, found that their number hardly matters).
GROUP = 8


def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    """Return a convolution and its norm."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return [layer, nn.GroupNorm(outputs // GROUP, outputs)]


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first, second = convolution(inputs, outputs, 3, stride), convolution(outputs, outputs, 3, 1)
        self.layers = nn.Sequential(*first, nn.ReLU(), *second)
        is_same = stride == 1 and inputs == outputs
        self.shortcut = nn.Sequential(*([] if is_same else convolution(inputs, outputs, 1, stride)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return torch.relu(self.layers(images) + self.shortcut(images))


def resnet18(classes: int, width: int = 64) -> nn.Sequential:
    """Return the model: its stem, four stages, and its head. `width` is the number of channels of the stem."""
    stem = nn.Sequential(*convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages = [
        nn.Sequential(Block(inputs, outputs, 1 if inputs == outputs else 2), Block(outputs, outputs, 1))
        for inputs, outputs in itertools.pairwise(widths)
    ]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
    return nn.Sequential(stem, *stages, head)
