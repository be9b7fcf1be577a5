"""What `wingbar export` can be asked, the texts are its help; and what of it is refused before torch is imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro

from wingbar.config.words import OUT
from wingbar.errors import UserError
from wingbar.evaluate.wanted import Wanted, find_wanted
from wingbar.files import check_place
from wingbar.train.runfolder import is_run
from wingbar.use.options import check_folder, check_handling

Format = Literal["onnx", "program", "timm", "hub"]
USUAL = {"onnx": "embedder.onnx", "program": "embedder.pt2", "timm": "timm", "hub": "hub"}  # what is written, by format
# Everything that an exported folder may hold: where there is anything else, nothing is written.
OURS = {
    "README.md",
    "config.json",
    "model.safetensors",
    "embedder.json",
    "weights.safetensors",
    "whitening.safetensors",
    "head.json",
    "head.safetensors",
}
ONNX = ("onnx", "onnxscript", "onnxruntime")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Export:
    """Write an embedder as something that other software runs, checked against PyTorch; docs/export.md."""

    what: Annotated[str, tyro.conf.Positional]
    """Run (folder), embedder (folder), what `wingbar classify` wrote, weights file, or name of a model with
    --encoder.weights."""
    to: Format
    """An ONNX file, a program of torch.export (.pt2), a folder that timm opens, or that with a model card for a hub."""
    out: Annotated[Path | None, OUT] = None
    """File or folder to write; embedder.onnx, embedder.pt2, timm or hub in the run, or here, if not given."""
    encoder: Annotated[str, tyro.conf.arg(name="encoder.name")] = ""
    """Architecture of a weights file that does not say it: resnet50, timm/vit_small_patch16_224."""
    weights: Annotated[str, tyro.conf.arg(name="encoder.weights")] = ""
    """Of a model that is given by name: a file, a name such as IMAGENET1K_V1, or `random`."""
    size: Annotated[int | None, tyro.conf.arg(name="data.size")] = None
    """Side of the images it takes, 32 to 448; its own if not given."""
    repo: str = ""
    """Of hub: the repository, OWNER/NAME; what would be sent there is listed."""
    push: bool = False
    """Of hub: send it."""
    public: bool = False
    """Of hub: a repository that is made for it can be seen by everybody."""


class Order(NamedTuple):
    """What is to be exported, and where to."""

    wanted: Wanted
    out: Path
    record: Wanted  # the run whose record tells of it; the same where there is none


def resolve(asked: Export) -> Order:
    """The encoder and the place; what makes no sense is refused."""
    wanted = find_wanted(asked.what, weights=asked.weights)
    check_handling(size=asked.size)
    record = _record_of(wanted)
    _check_hub(asked, record)
    out = (asked.out or (wanted.folder or Path()) / USUAL[asked.to]).expanduser()
    if "." in USUAL[asked.to]:
        _check_file(out, asked.to)
    else:
        check_folder(out, OURS, "export")
    missing = [name for name in ONNX if find_spec(name) is None] if asked.to == "onnx" else []
    if missing:
        raise UserError(
            f"--to onnx needs {' and '.join(missing)}; pip install wingbar[export], or use --to program without"
        )
    return Order(wanted, out, record)


def _record_of(wanted: Wanted) -> Wanted:
    """A classifier may lie in the run that it was made of."""
    folder = Path(wanted.name).expanduser().resolve()
    inside = (folder / "head.json").exists() and is_run(folder.parent)
    return find_wanted(str(folder.parent)) if inside else wanted


def _check_hub(asked: Export, record: Wanted) -> None:
    if asked.to != "hub":
        if asked.repo or asked.push or asked.public:
            raise UserError(f"--repo, --push and --public are for --to hub, not for --to {asked.to}")
        return
    if record.folder is None:
        raise UserError(
            f"{asked.what} is no run, nor a classifier in a run's folder, and a model card is written from a run's "
            "record; choose another --to"
        )
    if asked.repo and not REPOSITORY.fullmatch(asked.repo):
        raise UserError(f"{asked.repo!r} is no repository; --repo is OWNER/NAME, such as me/birds")
    if asked.push and not asked.repo:
        raise UserError("--push needs to know where to; give --repo OWNER/NAME")


def _check_file(out: Path, to: str) -> None:
    ending = Path(USUAL[to]).suffix
    if out.suffix != ending or out.is_dir():
        raise UserError(f"{out} is {'a folder' if out.is_dir() else 'no ' + ending}; --to {to} writes a {ending} file")
    check_place(out.absolute().parent, remedy="give --out another place")
