"""The paper's method as a wrapper: its settings, and what they make of `SynthPairs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from typing import TYPE_CHECKING, Literal

from wingbar.config.entry import TINY, Context, Entry

if TYPE_CHECKING:
    from wingbar.config.settings import Config


@dataclass(frozen=True)
class DecoderSettings:
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
class ReadingSettings:
    """Where the paper can be read in two ways (docs/method.md, A1 to A37)."""

    spread: Literal["row_std", "row_std_minmax", "column_variance", "column_variance_minmax", "raw_variance"] = (
        "row_std"
    )
    """A1, A12: what "variance of a dimension" means."""
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
    """A27: SimCLR's loss, or the base's own through its predictor (SimSiam, BYOL)."""
    decoder_init_bn: Literal["evaluation", "batch"] = "evaluation"
    """A29: the encoder's BatchNorm while the decoder is initialised."""
    symmetric: bool = True
    """A31: all images and twins as anchors, or the rebuilt images only."""
    decoder_bn: Literal["frozen", "shared", "evaluation"] = "frozen"
    """A37: the decoder's running statistics while it makes twins."""


@dataclass(frozen=True)
class PairSettings:
    """The paper's method around a base: pairs of rebuilt image and twin."""

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
    place: Literal["image", "residual"] = "image"
    """A pair is rebuilt image and twin (the paper), or the real image and itself plus what the noise changed."""
    centred: bool = False
    """Pairs are compared by how their embeddings differ from the batch's mean; what all share has no gradient then."""
    ranked: bool = False
    """Grad-CAM's scores count by rank; by min-max all but the few highest dimensions get nearly the full noise."""
    decoder: DecoderSettings = DecoderSettings()
    readings: ReadingSettings = ReadingSettings()


def _problems(settings: PairSettings, config: Config) -> Iterator[str]:
    readings, base = settings.readings, config.method.entry
    if "lowvar" in settings.criteria and config.data.batch > settings.bank:
        too_large = f"a bank of {settings.bank} rows cannot hold a batch of {config.data.batch}"
        yield f"{too_large}; raise pairs.bank or lower data.batch"
    if readings.pair_loss == "native" and "comparison" not in base.offers:
        own = "pairs.readings.pair_loss native is a base's own comparison of two embeddings"
        yield f"{own}, {base.title} has none; use simsiam or byol, or nt_xent"
    if readings.second == "teacher" and "teacher" not in base.offers:
        yield f"pairs.readings.second teacher needs a base method with a teacher; {base.title} has none"
    if readings.pair_loss == "native" and settings.centred:
        yield "pairs.centred is for pairs.readings.pair_loss nt_xent; a base's own loss has no negatives"


def _passes(settings: PairSettings) -> float:
    """Rebuilding: an encoder pass with gradient and a light decoder's; pairs: two more of each, and Grad-CAM's."""
    if not settings.nu:
        return 6
    return 10 if "gradcam" in settings.criteria and settings.eps_g else 9


ENTRY = Entry(
    title="pairs",
    settings=PairSettings,
    wraps=True,
    looks_at_images=True,
    decodes=True,
    passes=_passes,
    limits={
        **{name: (0, inf) for name in ("alpha", "nu", "eps_g", "eps_var", "kappa", "decoder.epochs", "decoder.lr")},
        **{"bank": (1, inf), "temperature": (TINY, inf), "decoder.scale": (TINY, 1)},
        "readings.noise_floor": (-inf, inf),
    },
    endless=frozenset({"kappa"}),  # every dimension
    problems=_problems,
    remedies={
        "rebuild": "lower pairs.decoder.lr or pairs.alpha, or use run.precision fp32",
        "pair": "lower pairs.eps_g, pairs.eps_var or pairs.nu, or raise pairs.temperature",
    },
    before="before",
    before_passes=lambda settings: 2 * settings.decoder.epochs,  # a light decoder's, with gradient
    before_depends=("decoder", "readings.pixels", "readings.decoder_init_bn"),
    small={"bank": 32, "kappa": 0.1, "decoder.name": "tiny", "decoder.epochs": 0},
)

import torch
from torch import Tensor, nn

from wingbar.methods import criteria, losses, perturb, synth
from wingbar.methods.kinds import comparing
from wingbar.methods.rebuild import Rebuild, embed_as_is
from wingbar.methods.synth import SynthPairs
from wingbar.models import decoder
from wingbar.models.encoder import check_size, embed_all, evaluation_mode, evaluation_statistics, frozen_statistics
from wingbar.types import STD, Method, Network, Preparation

STATISTICS = {"frozen": frozen_statistics, "shared": synth.shared_statistics, "evaluation": evaluation_statistics}
PIXELS = {"linear": decoder.linear_pixels, "unit": decoder.unit_pixels, "signed": decoder.signed_pixels}
PIXEL_SCALE = {"unit": 1.0, "signed": 2.0}  # length of one unit of [0, 1] in that space
DECODER_INIT = {"evaluation": evaluation_mode, "batch": frozen_statistics}
MEMORY = 2**28  # values of features that are kept while the decoder is initialised: a gigabyte at most


def pairs_in(method: Network) -> SynthPairs:
    """The pairs in a method, however deep."""
    return next(part for part in method.modules() if isinstance(part, SynthPairs))


def build(base: Method, settings: PairSettings, context: Context) -> SynthPairs:
    """Pairs around a base, as the settings want them."""
    dim, size = base.encoder.dim, round(settings.decoder.scale * context.size)
    check_size(base.encoder, size)
    decode = decoder.DECODERS[settings.decoder.name](dim, size, pixels=PIXELS[settings.readings.pixels])
    return SynthPairs(
        base,
        decode,
        [_criterion(settings, name, base, context) for name in settings.criteria],
        alpha=settings.alpha,
        nu=settings.nu,
        readings=_readings(settings, base),
    )


def before(
    method: SynthPairs, settings: PairSettings, everything: Callable[[], Iterator[Tensor]], *, images: int
) -> Preparation:
    """The decoder learns to rebuild images, the encoder as it is."""
    rebuild = Rebuild(
        method.encoder,
        method.decoder,
        loss=method.readings.rebuild_loss,
        mode=DECODER_INIT[settings.readings.decoder_init_bn],
        features=_remembered(method, settings, everything, images),
        lr=settings.decoder.lr,
    )
    return Preparation("decoder", rebuild, method.decoder, settings.decoder.epochs)


def _remembered(
    method: SynthPairs, settings: PairSettings, everything: Callable[[], Iterator[Tensor]], images: int
) -> Callable[[], Tensor] | None:
    """Every image's feature, computed when first asked for; None where it depends on the batch or would fill memory.

    The encoder is not trained by decoder initialisation, so one pass over the images does for all epochs of it.
    """
    if settings.readings.decoder_init_bn == "batch" or images * method.encoder.dim > MEMORY:
        return None

    @cache
    def features() -> Tensor:
        return embed_all(lambda image: embed_as_is(method.encoder, image, evaluation_mode), everything())

    return features


def _contrast(settings: PairSettings) -> losses.Comparison:
    """The options both contrastive losses share."""
    return {
        "temperature": settings.temperature,
        "denominator": getattr(losses, settings.readings.denominator),
        "scale": losses.unit_length if settings.readings.normalise else losses.as_is,
    }


def _criterion(settings: PairSettings, name: str, base: Method, context: Context) -> nn.Module:
    if name == "uniform":
        return criteria.Uniform(eps=settings.eps_g)
    if name == "gradcam":
        rectify = getattr(criteria, settings.readings.sign)
        stretch = perturb.by_rank if settings.ranked else perturb.minmax
        return criteria.GradCam(eps=settings.eps_g, loss=_own_loss(settings, base), rectify=rectify, stretch=stretch)
    return criteria.LowVariance(
        base.encoder.dim,
        size=settings.bank,
        kappa=settings.kappa,
        eps=settings.eps_var,
        spread=getattr(criteria, settings.readings.spread),
        ready=2 * context.batch,
    )


def _own_loss(settings: PairSettings, base: Method) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss behind Grad-CAM."""
    if settings.readings.pair_loss == "native":
        return comparing(base).compare_own
    return partial(getattr(criteria, settings.readings.scope), **_contrast(settings))


def _pair_loss(settings: PairSettings, base: Method) -> Callable[[Tensor, Tensor], Tensor]:
    if settings.readings.pair_loss == "native":
        return comparing(base).compare
    contrast = _contrast(settings)
    if settings.centred:
        contrast["scale"] = partial(losses.centred, scale=contrast["scale"])
    return partial(losses.nt_xent, symmetric=settings.readings.symmetric, **contrast)


def _readings(settings: PairSettings, base: Method) -> synth.Readings:
    readings = settings.readings
    return synth.Readings(
        pair_loss=_pair_loss(settings, base),
        rebuild_loss=_rebuild_loss(readings.pixels),
        noise=perturb.Noise(
            std=perturb.noise_std if readings.noise == "std" else perturb.noise_std_from_variance,
            unit=perturb.relative if readings.noise_relative else perturb.absolute,
            per_image=readings.noise_per_image,
            floor=readings.noise_floor,
        ),
        place=getattr(synth, f"in_{settings.place}"),
        second=synth.student_view if readings.second == "student" else synth.teacher_view,
        embed_pair=getattr(synth, readings.embed_pair),
        encoder_statistics=STATISTICS[readings.encoder_bn],
        decoder_statistics=STATISTICS[readings.decoder_bn],
        rebuild_trains_encoder=readings.rebuild_trains_encoder,
        pair_trains_decoder=readings.pair_trains_decoder,
        decoder_lr=settings.decoder.lr if settings.decoder.optimizer == "adam" else None,
    )


def _rebuild_loss(pixels: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Eq. 2 in the decoder's pixel space."""
    if pixels == "linear":
        return losses.reconstruction
    scale = PIXEL_SCALE[pixels] * torch.tensor(STD).view(3, 1, 1)
    return lambda rebuilt, image: losses.reconstruction(rebuilt, image, scale=scale.to(image.device))
