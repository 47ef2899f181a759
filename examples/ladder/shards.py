"""Shards: tar files of JPEG images and their classes, in WebDataset's naming. Run as a script, it creates some.

    python examples/ladder/shards.py /data/shards --shards 8 --images 64

An image shows a polygon on noise. Its class determines the number of corners and the approximate colour.
"""

from __future__ import annotations

import argparse
import colorsys
import random
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch
import webdataset
from PIL import Image, ImageDraw

CLASSES = 10


def draw(kind: int, side: int, luck: random.Random) -> Image.Image:
    """Return an image of a class, `side` pixels wide and high."""
    noise = numpy.frombuffer(luck.randbytes(side * side * 3), numpy.uint8)
    image = Image.fromarray(noise.reshape(side, side, 3) // 2)
    colour = colorsys.hsv_to_rgb((kind + luck.uniform(-0.3, 0.3)) / CLASSES, 1, luck.uniform(0.6, 1))
    radius = luck.uniform(0.25, 0.4) * side
    x, y = (luck.uniform(radius, side - radius) for _ in range(2))
    red, green, blue = (int(255 * part) for part in colour)
    ImageDraw.Draw(image).regular_polygon((x, y, radius), 3 + kind, luck.randrange(360), (red, green, blue))
    return image


def batches(shards: list[str], epoch: int, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield images and classes. Each rank has its own shards, and sees each image in them once per epoch."""
    order = random.Random(epoch)
    shards = order.sample(shards, len(shards))
    data = webdataset.WebDataset(shards, shardshuffle=False, nodesplitter=webdataset.split_by_node)
    data = data.shuffle(1000, rng=order).decode("torchrgb").to_tuple("jpg", "cls").batched(size)
    yield from webdataset.WebLoader(data, batch_size=None, num_workers=1)


def main() -> None:
    """Write the shards. The same arguments always give the same images."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=8, help="a multiple of the ranks (%(default)s)")
    parser.add_argument("--images", type=int, default=64, help="in each shard (%(default)s)")
    parser.add_argument("--side", type=int, default=32, help="of an image, in pixels (%(default)s)")
    options = parser.parse_args()

    options.folder.mkdir(parents=True, exist_ok=True)
    luck = random.Random(0)
    for shard in range(options.shards):
        with webdataset.TarWriter(str(options.folder / f"shard-{shard:06d}.tar")) as tar:
            for index in range(shard * options.images, (shard + 1) * options.images):
                kind = luck.randrange(CLASSES)
                # The extensions determine how each part is encoded, and WebDataset also decodes by extension.
                tar.write({"__key__": f"{index:06d}", "jpg": draw(kind, options.side, luck), "cls": kind})


if __name__ == "__main__":
    main()
