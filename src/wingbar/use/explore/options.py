"""What `wingbar explore` can be asked, the texts are its help; and what of it is refused before torch is imported."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from wingbar.config.limits import check_device
from wingbar.errors import UserError
from wingbar.evaluate.wanted import Wanted, find_wanted
from wingbar.use.options import check_handling

PASSWORD = "WINGBAR_PASSWORD"  # in the environment: words of a command line are seen by everybody on the machine
SHORTEST = 8  # letters


@dataclass(frozen=True)
class Explore:
    """Look around in images with an encoder, on a page in the browser: what is alike before and after training, where
    the encoder looks, rebuilt images and twins, a map of all images."""

    what: Annotated[str, tyro.conf.Positional]
    """Run (folder), embedder (folder), weights file, or name of a model with --encoder.weights."""
    images: Annotated[str, tyro.conf.Positional] = ""
    """Folder of images, CSV file with a column `path`, unpacked data set, or `lookalike`; a run's own if not given."""
    map: Literal["pca", "umap", "tsne"] = "pca"
    """How the map is made; umap needs umap-learn, tsne openTSNE."""
    k: int = 8
    """Nearest images that are shown."""
    port: int = 7870
    """Of the page's address; 0: any that is free."""
    host: str = "127.0.0.1"
    """Address to listen at. All but this machine's own need a password in the environment: WINGBAR_PASSWORD."""
    encoder: Annotated[str, tyro.conf.arg(name="encoder.name")] = ""
    """Architecture of a weights file that does not say it: resnet50, timm/vit_small_patch16_224."""
    weights: Annotated[str, tyro.conf.arg(name="encoder.weights")] = ""
    """Of a model that is given by name: a file, a name such as IMAGENET1K_V1, or `random`."""
    name: Annotated[str | None, tyro.conf.arg(name="data.name")] = None
    """Which data set IMAGES is: folder, flat, csv, cub200, …; guessed if not given."""
    size: Annotated[int | None, tyro.conf.arg(name="data.size")] = None
    """Side of the images the encoder sees, 32 to 448; its own if not given."""
    workers: Annotated[int, tyro.conf.arg(name="data.workers")] = 0
    """Threads that read and decode; 0: one per core."""
    device: str = "auto"
    """auto, cpu or cuda."""
    quiet: bool = False
    """Show neither bars nor notes."""


def check_explore(asked: Explore) -> Wanted:
    """The encoder, if everything makes sense that can be known without looking at images."""
    check_device(asked.device)
    if asked.k < 1:
        raise UserError(f"k is {asked.k}; give at least 1")
    if not 0 <= asked.port <= 65535:
        raise UserError(f"port is {asked.port}; give one from 1 to 65535, or 0 for any that is free")
    check_handling(images=asked.images, size=asked.size, workers=asked.workers)
    password(asked)
    wanted = find_wanted(asked.what, weights=asked.weights)
    if not asked.images and wanted.config is None:
        raise UserError(f"{asked.what} is no run and has no images of its own; give a folder of images after it")
    return wanted


def password(asked: Explore) -> str:
    """What a visitor must know; nothing on this machine alone, unless one is set."""
    word = os.environ.get(PASSWORD, "")
    if not is_loopback(asked.host) and len(word) < SHORTEST:
        raise UserError(
            f"--host {asked.host} shows these images to others, and {PASSWORD} has {len(word)} letters; set it to a "
            f"password of at least {SHORTEST}, or leave out --host and reach this machine by: ssh -L"
        )
    return word


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
