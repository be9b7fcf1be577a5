"""wingbar: self-supervised learning for fine-grained visual recognition.

`wingbar.fit("photos/", out="runs/a")` trains, `wingbar.load("runs/a")` embeds and searches; the parts below
build anything else. Each is imported when it is used.
"""

from typing import TYPE_CHECKING

from wingbar.lazy import lazily

if TYPE_CHECKING:
    from wingbar.config.entry import Entry as Entry
    from wingbar.config.recipes import RECIPES as RECIPES
    from wingbar.config.settings import Config as Config
    from wingbar.config.settings import changed as changed
    from wingbar.data.batches import Batches as Batches
    from wingbar.data.lookalike import Lookalike as Lookalike
    from wingbar.errors import UserError as UserError
    from wingbar.evaluate.options import Evaluate as Evaluate
    from wingbar.evaluate.sitting import examine as examine
    from wingbar.methods import METHODS as METHODS
    from wingbar.methods.byol import BYOL as BYOL
    from wingbar.methods.criteria import GradCam as GradCam
    from wingbar.methods.criteria import LowVariance as LowVariance
    from wingbar.methods.criteria import Uniform as Uniform
    from wingbar.methods.diet import DIET as DIET
    from wingbar.methods.lewel import LEWEL as LEWEL
    from wingbar.methods.moco import MoCo as MoCo
    from wingbar.methods.rebuild import Rebuild as Rebuild
    from wingbar.methods.simclr import SimCLR as SimCLR
    from wingbar.methods.simsiam import SimSiam as SimSiam
    from wingbar.methods.synth import SynthPairs as SynthPairs
    from wingbar.models.decoder import LightDecoder as LightDecoder
    from wingbar.models.decoder import MirrorDecoder as MirrorDecoder
    from wingbar.models.decoder import tiny_decoder as tiny_decoder
    from wingbar.models.encoder import Encoder as Encoder
    from wingbar.models.trunks import build_encoder as build_encoder
    from wingbar.models.weights import encoder_with_weights as encoder_with_weights
    from wingbar.models.weights import load_encoder as load_encoder
    from wingbar.models.weights import save_encoder as save_encoder
    from wingbar.train.loop import train as train
    from wingbar.train.runs import Result as Result
    from wingbar.train.runs import fit as fit
    from wingbar.train.runs import resume as resume
    from wingbar.train.runs import run as run
    from wingbar.types import Batch as Batch
    from wingbar.types import Encoded as Encoded
    from wingbar.types import Output as Output
    from wingbar.use.loaded import Loaded as Loaded
    from wingbar.use.loaded import load as load

lazily(__name__)
