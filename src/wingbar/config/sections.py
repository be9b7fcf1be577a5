"""A run's settings as frozen dataclasses, but for the methods' own. Defaults are the paper's; tyro makes the command
line from the texts."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal

from wingbar.config.words import OUT, WHOLE

VIEW_NAMES = ("moco", "asymmetric", "multicrop")  # of `wingbar.data.views.VIEWS`; a method may have its own
SALIENCY_NAMES = ("mbd", "spectral")  # of `wingbar.data.saliency.SALIENCY`; or a folder of maps
NATIVE_BF16 = (8, 0)  # compute capability since which GPUs compute in bf16
FILE_ENDINGS = (".safetensors", ".pt", ".pth", ".tar", ".ckpt", ".bin")  # of weights


@dataclass(frozen=True)
class DataSettings:
    """What to learn from."""

    root: str = "lookalike"
    """Folder of images or tar shards, nested or flat, no labels needed; or `lookalike`, the embedded data set."""
    name: str = "flat"
    """How to read `root`: flat, folder, shards, csv, or a published set: cub200, cars, aircraft, gtsrb, isic2017, …"""
    options: tuple[str, ...] = ()
    """Of the reader, as key=value words: level=family (aircraft), subset=paper (gtsrb), test_fraction=0.1 (folder)."""
    holdout: float = 0.0
    """Share of every class's training images, 0 to 0.9, that is not trained on but evaluated in place of test."""
    download: bool = False
    """Fetch the data set into `root` first, where torchvision can (aircraft, cifar100, flowers102, pets)."""
    size: int = 224
    """Side of the images the encoder sees, 32 to 448; a multiple of 16 where they are rebuilt, of 32 by `mirror`."""
    stored: int = 256
    """Side at which decoded images are kept, 32 to 1024."""
    cache: bool = True
    """Keep decoded images on disk, in $WINGBAR_CACHE or ~/.cache/wingbar, so that the next start takes seconds."""
    placement: Literal["auto", "device", "pinned", "streamed"] = "auto"
    """Where decoded images lie: on the device, in pinned host memory, streamed from disk; auto: the first that fits."""
    workers: int = 0
    """Threads that read and decode, at most 1024; 0: one per core."""
    strict: bool = False
    """Stop if any file is unreadable."""
    most_broken: float = 0.01
    """Largest share of unreadable files; they are left out and listed, above this the run stops."""
    batch: int = 128
    """Images per optimiser step, at least 2."""
    views: str | None = None
    """Augmentation: moco (SimSiam's, too), asymmetric (BYOL's) or multicrop (DINO's); the method's own if not given."""
    crop: float = 0.2
    """Smallest share of an image's area that a view may show."""
    colour: float = 1.0
    """Colour jitter and share of grey views, in units of the recipe's; 0 leaves colours as they are."""
    blur: float = 1.0
    """Share of blurred views, in units of the recipe's; 0 keeps every view as sharp as its image."""
    view_count: int = 2
    """Views per image, at least 2; a third gives Grad-CAM a fresh one (A24)."""
    local: int = 8
    """Of multicrop only: number of small crops beside the two large ones."""
    local_size: int = 96
    """Of multicrop only: side of the small crops, 32 to 448."""
    plain: Literal["squash", "centre"] = "squash"
    """The un-augmented image: squashed to a square, or resized and cropped at the centre (A32)."""
    classes: int = 8
    """Of lookalike only: number of species, at least 2."""
    images: int = 2000
    """Of lookalike only: number of images."""
    loud: float = 1.0
    """Of lookalike only: how loud the nuisances are, 0 to 1."""
    draw: int = 0
    """Of lookalike only: which draw; each has images of its own to train and to test on."""


@dataclass(frozen=True)
class EncoderSettings:
    """The network that is trained."""

    name: str = "resnet50"
    """Any torchvision or timm model: resnet50, convnext_tiny, timm/vit_small_patch16_224."""
    weights: str = "IMAGENET1K_V1"
    """Where it starts: `random`, a weight's name in its library, a local file, or `coarse` (timm/test_resnet, ours)."""
    batchnorm: Literal["train", "local", "frozen"] = "train"
    """BatchNorm over the whole batch, over each device's part of it, or with the first statistics for good."""
    last: int | None = None
    """Only so many of the trunk's last stages learn (of a ViT: blocks), the others stay as they came; else all do."""
    share: float = 1.0
    """What is kept at the end: weights this share of the way from the initialisation to what was learnt."""
    lora: int | None = None
    """Of a ViT: its weights stay, and only additions of this rank to queries and values learn; merged at the end."""


@dataclass(frozen=True)
class Optim:
    """How the networks are optimised; what is not given is as the method's authors chose it."""

    name: Literal["sgd", "lars", "adamw"] | None = None
    """SGD with momentum, LARS for large batches, or AdamW."""
    lr: float | None = None
    """Initial learning rate."""
    lr_rule: Literal["literal", "linear256"] | None = None
    """Take lr as it is, or times batch / 256 (A30)."""
    encoder: float | None = None
    """The encoder's rate in units of lr: below 1 it learns more slowly than heads that start from nothing."""
    layer_decay: float | None = None
    """Each layer of the encoder learns at this share of the next one's rate: below 1 the early ones stay."""
    patches: float | None = None
    """Of a ViT: the patch embedding's rate in units of what its layer has otherwise, 0.2 in DINOv2."""
    momentum: float | None = None
    """Of SGD and LARS."""
    betas: tuple[float, float] | None = None
    """Of AdamW: how long means and squares are remembered."""
    weight_decay: float | None = None
    """Towards zero."""
    spare: bool | None = None
    """Weight decay, and the trust ratio of LARS, leave out norms and biases."""
    clip: float | None = None
    """Largest norm of the gradient; inf: never clipped."""
    clip_each: float | None = None
    """Largest norm of the gradient of each weight or bias by itself, as in DINO; inf: never clipped."""
    schedule: Literal["epoch", "step", "constant"] | None = None
    """The rate falls by a cosine, once per epoch or at every step; or stays."""
    warmup: float | None = None
    """Epochs, or a part of one, in which the rate rises to its initial value."""
    heads: float | None = None
    """Epochs, or a part of one, in which heads learn alone before the encoder does."""


# What holds where neither the user nor the method says otherwise.
PLAIN = Optim(
    name="sgd",
    lr=0.03,
    lr_rule="literal",
    encoder=1.0,
    layer_decay=1.0,
    patches=1.0,
    momentum=0.9,
    betas=(0.9, 0.999),
    weight_decay=1e-4,
    spare=False,
    clip=math.inf,
    clip_each=math.inf,
    schedule="epoch",
    warmup=0.0,
    heads=0.0,
)


def settled(asked: Optim, own: Optim) -> Optim:
    """Every value given: the user's before the method's own before the usual.

    >>> settled(Optim(warmup=2.0), Optim(lr=0.3)).lr, settled(Optim(lr=0.1), Optim(lr=0.3)).lr
    (0.3, 0.1)
    """
    given = [(field.name, getattr(some, field.name)) for some in (own, asked) for field in fields(some)]
    return replace(PLAIN, **{name: value for name, value in given if value is not None})


@dataclass(frozen=True)
class Run:
    """Where and how long."""

    out: Annotated[str, OUT] = ""
    """Folder of the run; must not exist unless --run.overwrite or --run.resume."""
    epochs: int = 100
    """Epochs of training."""
    seed: Annotated[int, WHOLE] = 0
    """Of everything random."""
    device: Annotated[str, WHOLE] = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:1`."""
    devices: int = 1
    """Processes that share each batch, one per GPU of this machine; on a CPU they compute the same, hardly faster."""
    wait_minutes: float = 30.0
    """Of several devices: how long they wait for one another before all give up."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 autocast on CUDA, fp16 with scaled losses on GPUs without bf16, fp32 on the CPU."""
    channels_last: bool = True
    """Memory layout of convolutions."""
    compile: Literal["auto", "on", "views", "off"] = "auto"
    """torch.compile of networks, 1 to 3 minutes, or of views alone; auto: on a GPU, all from 3,000 steps on."""
    accumulate: int = 1
    """Cut each batch into this many forward passes."""
    recompute: bool = False
    """Keep only what enters the encoder's blocks, and compute the rest again: same numbers, less memory, more time."""
    fit: Literal["asked", "auto"] = "asked"
    """auto: a batch that does not fit the GPU is recomputed, then cut into as few passes as do; said and recorded."""
    log_every: int = 20
    """Steps between two lines of the record."""
    save_minutes: float = 10.0
    """Time between two checkpoints."""
    doctor: int = 128
    """Plain training images on which collapse is looked for after every epoch; 0: never."""
    stop_on_collapse: bool = False
    """Stop, with everything saved and exit code 3, when the encoder has collapsed; otherwise a note says so, once."""
    probe_every: int = 0
    """Epochs between two kNN and linear probes on the labelled splits; 0: none. They never choose what is saved."""
    probe_images: int = 2000
    """Most images of each split that a probe looks at, at least 10."""
    pictures_every: int = 1
    """Epochs after which pairs and curves are drawn anew in the run's `pictures`, at most once a minute; 0: never."""
    tensorboard: bool = True
    """Write TensorBoard files when it is installed."""
    tracker: Literal["wandb", "trackio", "mlflow"] | None = None
    """Tell a tracker, too, set up by its own environment variables; the run goes on where it fails."""
    overwrite: bool = False
    """Delete what is in `out` first."""
    resume: bool = False
    """Go on from the checkpoint in `out` if there is one."""
