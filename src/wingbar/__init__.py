"""wingbar: self-supervised learning for fine-grained visual recognition.

`wingbar.fit("photos/", out="runs/a")` trains; the parts below build anything else.
"""

# ruff: noqa: E402
from wingbar.process import share_cores

share_cores()  # before torch is imported, which reads it once

from wingbar.config import Config
from wingbar.criteria import GradCam, LowVariance, Uniform
from wingbar.data.batches import Batches
from wingbar.data.lookalike import Lookalike
from wingbar.decoder import LightDecoder, MirrorDecoder, tiny_decoder
from wingbar.encoder import Encoder, build_encoder
from wingbar.exam import Evaluate, examine
from wingbar.methods import METHODS, MoCo, Rebuild, SimSiam, SynthPairs
from wingbar.recipes import RECIPES
from wingbar.runs import Result, fit, resume, run
from wingbar.settings import changed
from wingbar.train.loop import train
from wingbar.types import Batch, Encoded, Output, UserError
from wingbar.weights import encoder_with_weights, load_encoder, save_encoder

__all__ = [
    "METHODS",
    "RECIPES",
    "Batch",
    "Batches",
    "Config",
    "Encoded",
    "Encoder",
    "Evaluate",
    "GradCam",
    "LightDecoder",
    "Lookalike",
    "LowVariance",
    "MirrorDecoder",
    "MoCo",
    "Output",
    "Rebuild",
    "Result",
    "SimSiam",
    "SynthPairs",
    "Uniform",
    "UserError",
    "build_encoder",
    "changed",
    "encoder_with_weights",
    "examine",
    "fit",
    "load_encoder",
    "resume",
    "run",
    "save_encoder",
    "tiny_decoder",
    "train",
]
