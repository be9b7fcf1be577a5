"""The embedder: all that an image needs to become the vector that is evaluated, in one folder.

`embedder.json` says in words a person can read what the folder holds: trunk, size and normalisation of images, the
feature that is taken, whitening. `weights.safetensors` has the tensors. Most methods take the trunk's pooled vector;
one with an `embed` of its own is built anew by its entry, from the tensors that its `embed` uses and no others.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from wingbar.config.configfile import from_json, to_json
from wingbar.config.entry import Context
from wingbar.config.settings import Config
from wingbar.errors import UserError
from wingbar.files import atomic, write_text
from wingbar.models.encoder import Encoder, evaluation_mode
from wingbar.models.weights import (
    encoder_with_weights,
    image_size,
    load_encoder,
    save_encoder,
    tensors_hash,
    weights_hash,
)
from wingbar.models.whitening import Whitening, whiten
from wingbar.tensors import load_tensors, save_tensors
from wingbar.types import Method, Pixels

FOLDER, ABOUT, WEIGHTS, WHITE = "embedder", "embedder.json", "weights.safetensors", "whitening.safetensors"
ENCODER = "encoder.safetensors"
FORMAT = 1
SIZE = 224  # of images, where nobody says otherwise
LARGEST = 8192  # side of an image that a stranger's file may ask memory for


class Embedder(nn.Module):
    """Normalised images to vectors. `encoder` is the trunk in it, for what needs a map or a gradient."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        size: int,
        own: Method | None = None,  # a method whose `embed` is not the trunk's pooled vector
        config: Config | None = None,  # that method's, from which it can be built again
        whitening: Whitening | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.own = encoder, own
        self.size, self.config, self.whitening = size, config, whitening

    def forward(self, image: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim"]:
        """The vectors of images that are resized and normalised."""
        feature: Tensor = self.encoder(image).vector if self.own is None else self.own.embed(image)
        return feature if self.whitening is None else whiten(feature, self.whitening)

    @property
    def identity(self) -> str:
        """SHA-256 of all that decides a vector: the same for the same tensors, wherever they lie."""
        trunk = weights_hash(self.encoder)
        if self.own is None and self.whitening is None:
            return trunk
        parts = {} if self.whitening is None else self.whitening._asdict()
        own = {} if self.own is None else _used(self.own, self.size)
        white = {f"white/{name}": torch.as_tensor(value) for name, value in parts.items()}
        return tensors_hash({**own, **white}, of=trunk)


# --- of a method -----------------------------------------------------------------------------------------------------


def embedder_of(method: Method, config: Config) -> Embedder:
    """The embedder of a trained method: the trunk that its `embed` asks, and the method itself where it does more."""
    size, asked = config.data.size, list[tuple[Encoder, Tensor]]()
    hooks = [
        part.register_forward_hook(lambda encoder, given, out: asked.append((encoder, out.vector)))
        for part in method.modules()
        if isinstance(part, Encoder)
    ]
    feature = _tried(method, size, hooks)
    if not asked:
        raise UserError(f"{type(method).__name__}.embed asks no wingbar.Encoder, so there is nothing to save of it")
    encoder, vector = asked[-1]
    pooled = len(asked) == 1 and feature.shape == vector.shape and bool((feature == vector).all())
    return Embedder(encoder, size=size) if pooled else Embedder(encoder, size=size, own=method, config=config)


def _used(method: Method, size: int) -> dict[str, Tensor]:
    """The tensors of a method without those of parts that its `embed` never calls: queues, teachers, heads."""
    called = set[int]()
    hooks = [part.register_forward_pre_hook(lambda one, given: called.add(id(one))) for part in method.modules()]
    _tried(method, size, hooks)
    calling = {name for name, part in method.named_modules() if any(id(one) in called for one in part.modules())}
    idle = tuple(f"{name}." for name, _ in method.named_modules() if name and name not in calling)
    state = method.state_dict()
    return {name: value for name, value in state.items() if isinstance(value, Tensor) and not name.startswith(idle)}


def _tried(method: Method, size: int, hooks: Sequence[RemovableHandle] = ()) -> Tensor:
    """What `embed` makes of two pictures of noise, the same every time; then the hooks go."""
    image = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad(), evaluation_mode(method):
            return method.embed(image.to(next(method.parameters()).device))
    finally:
        for hook in hooks:
            hook.remove()


# --- in and out ------------------------------------------------------------------------------------------------------


def save_embedder(embedder: Embedder, out: Path, *, recipe: str = "") -> None:
    """The folder `embedder` in `out`, and beside it, last, the trunk alone as encoder.safetensors."""
    save_folder(embedder, out / FOLDER, recipe=recipe)
    if embedder.own is None:
        _link(out / FOLDER / WEIGHTS, out / ENCODER)
    else:
        save_encoder(embedder.encoder, out / ENCODER, size=embedder.size, recipe=recipe)


def save_folder(embedder: Embedder, folder: Path, *, recipe: str = "") -> None:
    """Everything that `load_embedder` needs."""
    if embedder.own is None:
        save_encoder(embedder.encoder, folder / WEIGHTS, size=embedder.size, recipe=recipe)
    else:
        save_tensors(folder / WEIGHTS, _enough(embedder))
    if embedder.whitening is not None:
        parts = embedder.whitening._asdict()
        save_tensors(folder / WHITE, {name: parts[name] for name in ("mean", "axes", "variance")})
    write_text(folder / ABOUT, json.dumps(_about(embedder, recipe), indent=2, ensure_ascii=False) + "\n")


def _enough(embedder: Embedder) -> dict[str, Tensor]:
    """The tensors from which the method's `embed` comes out the same; all of them, if a few do not do."""
    assert embedder.own is not None and embedder.config is not None
    few = _used(embedder.own, embedder.size)
    again = _built(embedder.config, embedder.encoder, few)
    same = torch.equal(_tried(again, embedder.size), _tried(embedder.own, embedder.size).cpu())
    return few if same else {k: v for k, v in embedder.own.state_dict().items() if isinstance(v, Tensor)}


def _about(embedder: Embedder, recipe: str) -> dict[str, Any]:
    encoder, white = embedder.encoder, embedder.whitening
    return {
        "format": FORMAT,
        "encoder": {"name": encoder.name, "layout": encoder.layout, "dim": encoder.dim},
        "images": {"size": embedder.size, "view": "centre", "mean": encoder.pixels.mean, "std": encoder.pixels.std},
        "feature": "pooled" if embedder.config is None else json.loads(to_json(embedder.config)),
        "whitening": None if white is None else {"power": white.power, "dim": white.axes.shape[1]},
        "recipe": recipe,
    }


def _link(source: Path, target: Path) -> None:
    """The same file under another name, or a copy where the disk knows no such thing."""
    with atomic(target) as partial:
        try:
            os.link(source, partial)
        except OSError:
            shutil.copyfile(source, partial)


def load_embedder(folder: Path) -> Embedder:
    """What `save_embedder` wrote, in evaluation mode on the CPU."""
    with _reading(folder / ABOUT):
        return _loaded(folder, _read_about(folder / ABOUT))


def _loaded(folder: Path, about: Mapping[str, Any]) -> Embedder:
    white = about.get("whitening")
    kept = load_tensors(folder / WHITE) if white else {}
    whitening = Whitening(kept["mean"], kept["axes"], kept["variance"], white["power"]) if white else None
    size = _size(about)
    if about["feature"] == "pooled":
        return Embedder(load_encoder(folder / WEIGHTS), size=size, whitening=whitening).eval()
    from wingbar.models.trunks import build_encoder

    config, trunk = from_json(json.dumps(about["feature"])), about["encoder"]
    encoder = build_encoder(trunk["name"], layout=trunk["layout"])
    encoder.expect(Pixels(*(tuple(about["images"][name]) for name in ("mean", "std"))))
    method = _built(config, encoder, load_tensors(folder / WEIGHTS))
    found = embedder_of(method, config)
    return Embedder(found.encoder, size=size, own=method, config=config, whitening=whitening).eval()


def embedder_size(folder: Path) -> int:
    """Side of the images that an embedder in a folder takes."""
    with _reading(folder / ABOUT):
        return _size(_read_about(folder / ABOUT))


def _size(about: Mapping[str, Any]) -> int:
    size = int(about["images"]["size"])
    if not 1 <= size <= LARGEST:
        raise ValueError(f"images of {size} pixels a side")
    return size


def _built(config: Config, encoder: Encoder, state: Mapping[str, Tensor]) -> Any:
    """The method with these of its tensors; around a copy of the encoder, on the CPU."""
    built: Any = copy.deepcopy(encoder).cpu()
    context = Context(1, batch=config.data.batch, size=config.data.size)
    with torch.random.fork_rng(devices=[]):
        for part in config.parts:
            built = part.entry.around(built, part.settings, context)
    built.load_state_dict(state, strict=False)
    return built.eval()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file that anybody may have written, is said in one sentence."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, MemoryError) as error:
        raise UserError(f"{path} is no embedder of wingbar ({type(error).__name__}), or damaged") from error


def _read_about(path: Path) -> dict[str, Any]:
    about = json.loads(path.read_text(encoding="utf-8"))
    if about["format"] != FORMAT:
        raise UserError(f"the embedder {path} has format {about['format']}, this version reads {FORMAT}")
    return about


def open_embedder(what: str | Path, *, name: str = "", weights: str = "", size: int = SIZE) -> Embedder:
    """A run's folder or an embedder's, a weights file (`name` is its architecture, if it does not say), or a model's
    name with `weights`: "random", a name in its library, or a file."""
    path = Path(what).expanduser()
    if weights:
        return Embedder(encoder_with_weights(str(what), weights), size=size).eval()
    folder = next((place for place in (path / FOLDER, path) if (place / ABOUT).exists()), None)
    if folder is not None:
        return load_embedder(folder)
    file = path / ENCODER if path.is_dir() else path  # a run of earlier days has its encoder alone
    return Embedder(load_encoder(file, name=name), size=image_size(file) or size)
