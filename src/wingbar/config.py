"""A run's settings as frozen dataclasses. Defaults are the paper's; tyro makes the command line from the texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from wingbar.words import OUT, WHOLE

__all__ = ["Config", "Data", "Decoder", "Encoder", "Method", "Optim", "Readings", "Run", "Synth"]

FILE_ENDINGS = (".safetensors", ".pt", ".pth", ".tar", ".ckpt", ".bin")  # of weights


@dataclass(frozen=True)
class Data:
    """What to learn from."""

    root: str = "lookalike"
    """Folder of images, nested or flat, no labels needed; or `lookalike`, the embedded data set."""
    name: str = "flat"
    """How to read `root`: flat, folder, csv, or a published set, such as cub200, cars, aircraft, gtsrb, isic2017."""
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
    views: Literal["moco", "asymmetric"] = "moco"
    """Augmentation: MoCo v2's and SimSiam's recipe, or BYOL's asymmetric pair."""
    crop: float = 0.2
    """Smallest share of an image's area that a view may show."""
    colour: float = 1.0
    """Colour jitter and share of grey views, in units of the recipe's; 0 leaves colours as they are."""
    blur: float = 1.0
    """Share of blurred views, in units of the recipe's; 0 keeps every view as sharp as its image."""
    view_count: int = 2
    """Views per image, at least 2; a third gives Grad-CAM a fresh one (A24)."""
    plain: Literal["squash", "centre"] = "squash"
    """The un-augmented image: squashed to a square, or resized and cropped at the centre (A32)."""
    classes: int = 8
    """Of lookalike only: number of species, at least 2."""
    images: int = 2000
    """Of lookalike only: number of images."""
    loud: float = 1.0
    """Of lookalike only: how loud the nuisances are, 0 to 1."""


@dataclass(frozen=True)
class Encoder:
    """The network that is trained."""

    name: str = "resnet50"
    """Any torchvision or timm model: resnet50, convnext_tiny, timm/vit_small_patch16_224."""
    weights: str = "IMAGENET1K_V1"
    """Where it starts: `random`, a weight's name in its library, or a local file."""
    batchnorm: Literal["train", "frozen"] = "train"
    """BatchNorm as usual, or with the statistics of the initialisation for good (its affine part still trains)."""


@dataclass(frozen=True)
class Method:
    """The base method."""

    name: Literal["moco", "simsiam"] = "moco"
    """MoCo v2 or SimSiam."""
    dim: int | None = None
    """Width of the embedding; the method's own if not given (MoCo 128, SimSiam 2048)."""
    queue: int = 65536
    """MoCo: number of past keys."""
    momentum: float = 0.999
    """MoCo: how slowly the teacher follows; not to be given together with method.kept."""
    kept: float | None = None
    """MoCo: share of its first weights that the teacher keeps to the end, by whatever momentum does that."""
    temperature: float = 0.2
    """MoCo: of the contrastive loss."""
    splits: int = 1
    """MoCo: sub-batches with their own BatchNorm statistics, in place of shuffling over devices."""
    hidden: int = 512
    """SimSiam: width of the predictor's hidden layer."""


@dataclass(frozen=True)
class Synth:
    """The paper's method around the base."""

    on: bool = True
    """Learn from synthesised pairs; without it the base method runs alone."""
    criteria: tuple[Literal["gradcam", "lowvar", "uniform"], ...] = ("gradcam", "lowvar")
    """What decides which dimensions are perturbed; `uniform` perturbs all alike."""
    alpha: float = 1.0
    """Weight of the reconstruction loss."""
    nu: float = 0.5
    """Weight of the pair loss."""
    eps_g: float = 0.1
    """Noise scale of Grad-CAM (and of uniform)."""
    eps_var: float = 0.05
    """Noise scale of low variance."""
    kappa: float = 0.02
    """Dimensions that spread less than this are perturbed by low variance."""
    bank: int = 5632
    """Features remembered for low variance."""
    temperature: float = 0.2
    """Of the pair loss and of the loss behind Grad-CAM (A26)."""
    centred: bool = False
    """Pairs are compared by how their embeddings differ from the batch's mean; what all share has no gradient then."""
    ranked: bool = False
    """Grad-CAM's scores count by rank; by min-max all but the few highest dimensions get nearly the full noise."""


@dataclass(frozen=True)
class Decoder:
    """The network that rebuilds images."""

    name: Literal["light", "mirror", "tiny"] = "light"
    """The light one, a ResNet-50 upside down, or a tiny one (A28)."""
    scale: float = 1.0
    """Side of rebuilt images and twins, in units of data.size; a half makes training about half as fast again."""
    epochs: int = 200
    """Epochs of initialisation before training, encoder fixed."""
    lr: float = 1e-4
    """Adam's learning rate, for initialisation and training."""
    optimizer: Literal["adam", "shared"] = "adam"
    """In training: its own Adam, or the encoder's SGD (A28)."""


@dataclass(frozen=True)
class Readings:
    """Where the paper can be read in two ways (docs/method.md, A1 to A37)."""

    spread: Literal["row_std", "row_std_minmax", "column_variance", "column_variance_minmax", "raw_variance"] = (
        "row_std"
    )
    """A1, A12: what "variance of a dimension" means."""
    enqueue: Literal["after", "before"] = "after"
    """A3: MoCo's keys enter the queue after or before the loss."""
    denominator: Literal["with_positive", "without_positive"] = "with_positive"
    """A4: does the denominator contain the positive."""
    sign: Literal["ascent", "descent", "magnitude"] = "ascent"
    """A5: sign of Grad-CAM: the formula's, the text's, or none."""
    scope: Literal["own_term", "whole_batch"] = "own_term"
    """A6: gradient of the image's own loss, or of the batch's."""
    noise: Literal["std", "variance"] = "std"
    """A9: what the second argument of N(0, ·) is."""
    encoder_bn: Literal["frozen", "shared", "evaluation"] = "frozen"
    """A13: running statistics while the encoder sees rebuilt images and twins."""
    embed_pair: Literal["in_two_calls", "in_one_call"] = "in_two_calls"
    """A14: rebuilt images and twins encoded apart or together."""
    rebuild_trains_encoder: bool = True
    """A15: does the reconstruction loss reach the encoder."""
    pair_trains_decoder: bool = False
    """A16: does the pair loss reach the decoder."""
    pixels: Literal["linear", "unit", "signed"] = "linear"
    """A17: pixel space of decoder and reconstruction loss: normalised, [0, 1], [−1, 1]."""
    noise_per_image: bool = True
    """A18: fresh noise for every image, or one draw for the batch."""
    noise_floor: float | None = None
    """A19: clamp perturbed features from below (0 keeps them like features after a ReLU)."""
    noise_relative: bool = False
    """A20: noise in units of the mean absolute feature."""
    second: Literal["student", "teacher"] = "student"
    """A23: which encoder embeds the second view for Grad-CAM."""
    normalise: bool = True
    """A25: embeddings scaled to unit length."""
    pair_loss: Literal["nt_xent", "native"] = "nt_xent"
    """A27: SimCLR's loss, or SimSiam's own through its predictor."""
    decoder_init_bn: Literal["evaluation", "batch"] = "evaluation"
    """A29: the encoder's BatchNorm while the decoder is initialised."""
    symmetric: bool = True
    """A31: all images and twins as anchors, or the rebuilt images only."""
    decoder_bn: Literal["frozen", "shared", "evaluation"] = "frozen"
    """A37: the decoder's running statistics while it makes twins."""


@dataclass(frozen=True)
class Optim:
    """How the encoder is optimised: SGD, cosine per epoch."""

    lr: float | None = None
    """Initial learning rate; the method's own if not given (MoCo 0.03, SimSiam 0.05)."""
    lr_rule: Literal["literal", "linear256"] | None = None
    """Take lr as it is, or times batch / 256 (A30); the method's own if not given (MoCo literal, SimSiam linear256)."""
    encoder: float = 1.0
    """The encoder's rate in units of lr: below 1 it learns more slowly than heads that start from nothing."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 1e-4
    """On all parameters, biases and norms included, as MoCo does."""


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
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 autocast on CUDA, fp32 on the CPU."""
    channels_last: bool = True
    """Memory layout of convolutions."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile of encoder, teacher and decoder; auto: on CUDA. The first steps take 1 to 3 minutes then."""
    accumulate: int = 1
    """Cut each batch into this many forward passes."""
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
    overwrite: bool = False
    """Delete what is in `out` first."""
    resume: bool = False
    """Go on from the checkpoint in `out` if there is one."""


@dataclass(frozen=True)
class Config:
    """Everything that makes a run: written beside it as config.json, and enough to run it again."""

    data: Data = field(default_factory=Data)
    encoder: Encoder = field(default_factory=Encoder)
    method: Method = field(default_factory=Method)
    synth: Synth = field(default_factory=Synth)
    decoder: Decoder = field(default_factory=Decoder)
    readings: Readings = field(default_factory=Readings)
    optim: Optim = field(default_factory=Optim)
    run: Run = field(default_factory=Run)
