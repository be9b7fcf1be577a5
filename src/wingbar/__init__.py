"""wingbar: self-supervised learning for fine-grained visual recognition.

`wingbar.fit("photos/", out="runs/a")` trains; the parts below build anything else. Each is imported when it is used.
"""

from typing import TYPE_CHECKING

from wingbar.lazy import lazily

if TYPE_CHECKING:
    from wingbar.criteria import GradCam as GradCam
    from wingbar.criteria import LowVariance as LowVariance
    from wingbar.criteria import Uniform as Uniform
    from wingbar.data.batches import Batches as Batches
    from wingbar.data.lookalike import Lookalike as Lookalike
    from wingbar.decoder import LightDecoder as LightDecoder
    from wingbar.decoder import MirrorDecoder as MirrorDecoder
    from wingbar.decoder import tiny_decoder as tiny_decoder
    from wingbar.encoder import Encoder as Encoder
    from wingbar.entry import Entry as Entry
    from wingbar.errors import UserError as UserError
    from wingbar.exam.options import Evaluate as Evaluate
    from wingbar.exam.sitting import examine as examine
    from wingbar.methods import METHODS as METHODS
    from wingbar.methods.moco import MoCo as MoCo
    from wingbar.methods.rebuild import Rebuild as Rebuild
    from wingbar.methods.simsiam import SimSiam as SimSiam
    from wingbar.methods.synth import SynthPairs as SynthPairs
    from wingbar.recipes import RECIPES as RECIPES
    from wingbar.runs import Result as Result
    from wingbar.runs import fit as fit
    from wingbar.runs import resume as resume
    from wingbar.runs import run as run
    from wingbar.settings import Config as Config
    from wingbar.settings import changed as changed
    from wingbar.train.loop import train as train
    from wingbar.trunks import build_encoder as build_encoder
    from wingbar.types import Batch as Batch
    from wingbar.types import Encoded as Encoded
    from wingbar.types import Output as Output
    from wingbar.weights import encoder_with_weights as encoder_with_weights
    from wingbar.weights import load_encoder as load_encoder
    from wingbar.weights import save_encoder as save_encoder

lazily(__name__)
