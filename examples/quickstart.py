"""The parts in ten lines: an encoder, MoCo v2, the paper's method around it, a few steps, the feature of an image."""

from collections.abc import Sequence

import torch

from wingbar import GradCam, Lookalike, LowVariance, MoCo, Output, SynthPairs, build_encoder, tiny_decoder, train
from wingbar.data.batches import Batches
from wingbar.data.datasets import lookalike_store
from wingbar.data.views import moco, plain
from wingbar.methods.schedules import cosine
from wingbar.train.optim import Rule, build_optimizers

store = lookalike_store("train", side=64, classes=8, images=64, loud=1.0)
encoder = build_encoder("timm/test_resnet")
method = SynthPairs(
    MoCo(encoder, dim=64, queue=512),
    tiny_decoder(encoder.dim, 64),
    [GradCam(eps=0.1), LowVariance(encoder.dim, size=256, kappa=0.1)],
)
batches = Batches(store, moco(size=64), lambda images, aspect: plain(images, size=64), size=32)
optimizers = build_optimizers(method.param_groups(), Rule(lr=0.03))


def report(step: int, outputs: Sequence[Output]) -> None:
    """Print the losses of a step."""
    print(step, {name: round(loss.item(), 3) for name, loss in outputs[0].losses.items()})


train(method, batches, optimizers, lambda step: cosine(step // 2, 2), start=0, stop=4, after=[report])
bird = Lookalike(size=64)[0].image[None]
with torch.no_grad():
    print("feature:", method.eval().embed(plain(bird, size=64)).shape)
