"""Models in plain torch.nn with random weights, and batches of random data.

RECIPES has models of realistic sizes, for GPUs, and TINY has the same ones with few and narrow layers,
for tests. NARROW is for slow links: its models compute so little that the network is the bottleneck.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Bert(nn.Module):
    """BERT-base with its masked-language-model head (Devlin et al., 2019): 109.5 M parameters."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, positions: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        # Without dropout all contenders compute the same values.
        blocks = [
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, nn.functional.gelu, batch_first=True)
            for _ in range(layers)
        ]
        self.layers = nn.Sequential(*blocks)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for embedding in (self.words, self.positions, self.types):
            # BERT uses this standard deviation. With torch's 1 the loss of the tied head would be huge.
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of every token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.words(tokens) + self.positions(places) + self.types(torch.zeros_like(tokens))
        hidden = self.transform(self.layers(self.norm(embedded)))
        return nn.functional.linear(hidden, self.words.weight, self.bias)


class Bottleneck(nn.Module):
    """A residual block of 1x1, 3x3 and 1x1 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.layers = nn.Sequential(
            *_convolution(inputs, width, 1),
            nn.ReLU(),
            *_convolution(width, width, 3, stride),
            nn.ReLU(),
            *_convolution(width, outputs, 1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return torch.relu(self.layers(images) + self.shortcut(images))


def resnet(width: int, depths: tuple[int, ...], classes: int) -> nn.Sequential:
    """Return a ResNet (He et al., 2016); with 64, (3, 4, 6, 3) and 1000 it is ResNet-50: 25.6 M parameters."""
    layers: list[nn.Module] = [
        *_convolution(3, width, 7, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    inputs = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            inner = width << stage
            layers.append(Bottleneck(inputs, inner, 2 if stage and not block else 1))
            inputs = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def vgg16(width: int, classes: int) -> nn.Sequential:
    """Return VGG-16 (Simonyan and Zisserman, 2015); with 64 and 1000 it has 138.4 M parameters, 74 % in one layer."""
    layers: list[nn.Module] = []
    inputs = 3
    for count, outputs in ((2, width), (2, 2 * width), (3, 4 * width), (3, 8 * width), (3, 8 * width)):
        for _ in range(count):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    hidden = 64 * width
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(49 * inputs, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class Transformer(nn.Module):
    """A transformer that predicts the next token."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        blocks = [
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        ]
        self.layers = nn.Sequential(*blocks)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each token's successor."""
        logits: torch.Tensor = self.head(self.layers(self.embedding(tokens)))
        return logits


def mlp(inputs: int, width: int, layers: int, classes: int) -> nn.Sequential:
    """Return a perceptron with hidden layers of one width."""
    widths = [inputs, *[width] * layers]
    hidden = [nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in itertools.pairwise(widths)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, classes))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    # Without running statistics DDP has no buffers to broadcast in every step.
    return convolution, nn.BatchNorm2d(outputs, track_running_stats=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model, and the batches that it is trained on."""

    build: Callable[[], nn.Module]
    #: Returns a batch with the given number of examples. Targets are classes, one for each row of logits.
    batch: Callable[[int, torch.Generator], Batch]
    #: Examples per rank and step.
    examples: int
    #: For SGD with momentum 0.9, in trainings that should converge.
    learning_rate: float = 0.0
    #: Label smoothing of the loss.
    smoothing: float = 0.0

    def batch_of(self, step: int, rank: int, world_size: int) -> Batch:
        """Return the batch of a step and a rank, which is always the same."""
        generator = torch.Generator().manual_seed(step * world_size + rank)
        return self.batch(self.examples, generator)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean cross entropy."""
        inputs, targets = batch
        logits = model(inputs).flatten(0, -2)
        return nn.functional.cross_entropy(logits, targets.flatten(), label_smoothing=self.smoothing)


def _bert(
    vocabulary: int, width: int, layers: int, heads: int, positions: int, tokens: int, examples: int
) -> Recipe:
    def batch(count: int, generator: torch.Generator) -> Batch:
        drawn = torch.randint(vocabulary, (2, count, tokens), generator=generator)
        return drawn[0], drawn[1]

    return Recipe(
        build=lambda: Bert(vocabulary, width, layers, heads, positions), batch=batch, examples=examples
    )


def _resnet(width: int, depths: tuple[int, ...], classes: int, side: int, examples: int) -> Recipe:
    return _images(lambda: resnet(width, depths, classes), classes, side, examples)


def _images(build: Callable[[], nn.Module], classes: int, side: int, examples: int) -> Recipe:
    def batch(count: int, generator: torch.Generator) -> Batch:
        images = torch.randn((count, 3, side, side), generator=generator)
        return images, torch.randint(classes, (count,), generator=generator)

    return Recipe(build=build, batch=batch, examples=examples)


def _transformer(vocabulary: int, width: int, layers: int, heads: int, tokens: int) -> Recipe:
    def batch(count: int, generator: torch.Generator) -> Batch:
        drawn = torch.randint(vocabulary, (count, tokens + 1), generator=generator)
        return drawn[:, :-1], drawn[:, 1:]

    return Recipe(build=lambda: Transformer(vocabulary, width, layers, heads), batch=batch, examples=1)


RECIPES = {
    "bert": _bert(30522, 768, 12, 12, 512, tokens=128, examples=8),
    "resnet": _resnet(64, (3, 4, 6, 3), 1000, side=224, examples=32),
}
TINY = {
    "bert": _bert(100, 32, 2, 2, 16, tokens=8, examples=2),
    "resnet": _resnet(4, (1, 1), 10, side=32, examples=4),
}
NARROW = {
    # 24 MB of gradients. There are few tokens, because computation must be short.
    "transformer": _transformer(1000, 384, 3, 6, tokens=4),
    # A quarter of the width everywhere, including the classes, and thus a sixteenth of the
    # parameters: 35 MB and 6.4 MB. Small images do not change that.
    "vgg16": _images(lambda: vgg16(16, 250), classes=250, side=32, examples=1),
    "resnet50": _resnet(16, (3, 4, 6, 3), 250, side=32, examples=2),
    # 20 MB of gradients.
    "mlp": _images(lambda: mlp(3 * 16 * 16, 1024, 5, 10), classes=10, side=16, examples=16),
}


def gradient_bytes(recipe: Recipe) -> int:
    """Return the total bytes of a step's gradients."""
    with torch.device("meta"):
        return sum(parameter.numel() * parameter.element_size() for parameter in recipe.build().parameters())
