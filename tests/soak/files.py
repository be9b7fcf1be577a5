"""Damaged files of ours: checkpoints, safetensors, JSON, JSONL, CSV, lists of data sets, embeddings, the cache.

Each is read, refused in one sentence, or, where it has checksums, made anew and right.

`python tests/soak/files.py --minutes 30`
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

from endurance import main
from mutation import mutated, mutated_json, mutated_lines, mutated_tar
from test_readers import NEEDED, WRITERS

from wingbar import changed, run
from wingbar.config.configfile import read_config
from wingbar.config.recipes import recipe_named
from wingbar.data.cache import cached
from wingbar.data.decoding import decode_file
from wingbar.data.readers import read
from wingbar.data.walking import find_images
from wingbar.errors import UserError
from wingbar.evaluate.options import Evaluate
from wingbar.evaluate.protocols import PROTOCOLS
from wingbar.evaluate.record import read_result, write_result
from wingbar.evaluate.splits import find_sources, open_split
from wingbar.evaluate.subject import Subject, summon
from wingbar.evaluate.wanted import resolve
from wingbar.files import append
from wingbar.metrics.diagnosis import diagnose, read_record
from wingbar.metrics.linear import Linear
from wingbar.metrics.scores import ProtocolResult
from wingbar.models.embedder import embedder_size, open_embedder
from wingbar.models.weights import load_encoder
from wingbar.reproduce.making import recorded_seconds
from wingbar.reproduce.options import Reproduce
from wingbar.reproduce.plan import Job, make_plan
from wingbar.reproduce.render import write_tables
from wingbar.reproduce.results import read_all
from wingbar.reproduce.session import plan_table
from wingbar.reproduce.summary import summarise
from wingbar.reproduce.tables import measures
from wingbar.show.curves import gather_ablations, gather_curves
from wingbar.train.record import trim_record
from wingbar.train.runfolder import checked, continued, is_run
from wingbar.train.saved import load_method
from wingbar.use.classify.head import ClassHead, read_head, save_head
from wingbar.use.classify.labelled import read_labels
from wingbar.use.embeddings import Embeddings, IndexAbout, IndexRow, Maker
from wingbar.use.exact import nearest
from wingbar.use.formats import open_embeddings, write_embeddings
from wingbar.use.rows import PartShelf

PUBLISHED = sorted(NEEDED.keys() - {"cifar100"})  # data sets with lists; those of CIFAR-100 have a checksum
ENCODER = "timm/test_resnet"
SMALL = {
    **{"data.size": 32, "data.stored": 32, "data.batch": 4, "data.images": 8, "encoder.name": ENCODER},
    **{"method.queue": 8, "pairs.bank": 8, "pairs.kappa": 0.2, "pairs.decoder.epochs": 1, "run.epochs": 1},
    **{"run.tensorboard": False, "run.pictures_every": 0, "run.device": "cpu"},
}
SENTENCES = (UserError, OSError)  # what the command line tells in one line


def lay_out(home: Path) -> None:
    """One of everything."""
    run(changed(recipe_named("try-synth"), {**SMALL, "run.out": str(home / "run")}), recipe="try-synth", quiet=True)
    evaluated(home / "run")
    planned(home / "results")
    rng = np.random.default_rng(0)
    names = [f"{'ab'[number % 2]}/{number}.png" for number in range(12)]
    for name in names:
        (home / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(256, size=(9, 9, 3), dtype=np.uint8)).save(home / "photos" / name)
    (home / "shards").mkdir()
    with tarfile.open(home / "shards" / "0.tar", "w") as file:
        for number, name in enumerate(names):
            (home / "label").write_text(name[0])
            file.add(home / "photos" / name, f"{number}.png")
            file.add(home / "label", f"{number}.cls")
    lines = (f"photos/{name},{name[0]},{('train', 'test')[place % 3 == 0]}\n" for place, name in enumerate(names))
    (home / "list.csv").write_text("path,label,split\n" + "".join(lines))
    rows = [IndexRow(f"/photos/{name}", name[0], f"{number:064x}") for number, name in enumerate(names)]
    vectors = rng.normal(size=(len(rows), 6)).astype(np.float16)
    extras = {name: rng.normal(size=len(rows)).astype(np.float32) for name in ("projection_x", "projection_y")}
    for ending in ("npz", "map", "parquet"):
        about = IndexAbout(Maker("resnet18"), 6, "fp16", map="pca")
        write_embeddings(home / f"photos.{ending}", Embeddings(about, rows, vectors, extras))
    for name in PUBLISHED:
        WRITERS[name](home / name)
    linear = Linear(torch.randn(6, 2).double(), torch.zeros(2).double())
    head = ClassHead(("a", "b"), linear, torch.zeros(6).double(), torch.eye(2, 6).double(), 0.1, "x")
    save_head(head, home / "head", {})
    cached(find_images(home / "photos"), side=8, root=home / "cache")
    PartShelf(home / "parts", "whose", dim=6, kind=np.dtype("f2")).add(["a" * 64], vectors[:1], {"b" * 64: "no image"})
    torch.save(
        {"state_dict": load_encoder(home / "run" / "encoder.safetensors").trunk.state_dict()}, home / "strange.pth"
    )


# --- what reads each file --------------------------------------------------------------------------------------------


def settings(home: Path) -> None:
    read_config(home / "run" / "config.json")
    checked(continued(home / "run")[0])


def history(home: Path) -> None:
    is_run(home / "run")
    trim_record(home / "run" / "metrics.jsonl", "train", 1)
    recorded_seconds(home / "run", batch=4)
    diagnose(torch.eye(12, 6), record=read_record(home / "run"))
    gather_curves([home / "run"])


def scores(home: Path) -> None:
    """Either those that were measured, or none, and they are measured anew."""
    folder = home / "run" / "evaluation"
    known = evaluated(home.parent / "whole" / "run")
    found = read_result(folder, known.subject, "knn")
    for metric, score in found.scores.items() if found else ():
        assert abs(score.interval.value - known.result.scores[metric].interval.value) < 1e-6
    gather_ablations([home / "run"])


class Evaluated(NamedTuple):
    """The run, and what there is to be found."""

    subject: Subject
    result: ProtocolResult


@cache
def evaluated(folder: Path) -> Evaluated:
    asked = Evaluate((str(folder),), protocols=("knn",), device="cpu", quiet=True)
    wanted, config, out = resolve(asked)
    (candidate,), setting = summon(wanted, asked)
    train, test = (open_split(config, source, setting.device, quiet=True) for source in find_sources(config))
    subject = Subject(candidate, train, test, setting)
    result = PROTOCOLS["knn"](subject, asked)
    write_result(out, subject, "knn", result)
    return Evaluated(subject, result)


@cache
def planned(folder: Path) -> tuple[Reproduce, list[Job]]:
    """A table of one row, and a record with a number for each of its columns."""
    small = ("data.size=32", "data.stored=32", "data.batch=8", "data.images=24", "data.classes=3", "method.queue=16")
    place = {"out": folder, "results": folder}
    asked = Reproduce(("main",), ("lookalike",), ("MoCo V2",), set=small, encoder=ENCODER, weights="random", **place)
    (job,) = jobs = make_plan(asked)
    about = {"key": job.cell.key, "variant": job.cell.variant, "seed": 0, "gpu": None, "train_seconds": 1.0}
    number = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 24}
    append(folder / "main.jsonl", [{"metric": name, **about, **number} for name in measures(job.cell.row).values()])
    return asked, jobs


def tables(home: Path) -> None:
    asked, jobs = planned(home.parent / "whole" / "results")
    recorded = read_all(home / "results")
    plan_table(jobs, recorded)
    write_tables(home / "results", "main", summarise("main", jobs, recorded, asked))


def parts(home: Path) -> None:
    """A row of a part is the vector that was computed, or computed anew."""
    shelf = PartShelf(home / "parts", "whose", dim=6, kind=np.dtype("f2"))
    for part, row in shelf.places.values():
        assert shelf.arrays[part][row].shape == (6,)


def archive(home: Path) -> None:
    listing = read("shards", home / "shards", "train")
    for name in listing.names:
        decode_file(listing.root / name, side=8)


def embedder(home: Path) -> None:
    embedder_size(home / "run" / "embedder")
    open_embedder(home / "run")(torch.zeros(1, 3, 32, 32))


def lists(home: Path) -> None:
    for split in ("train", "test"):
        read("csv", home / "list.csv", split)
    read_labels(str(home / "list.csv"))


def published(name: str, home: Path) -> None:
    for split in ("train", "test"):
        read(name, home / name, split)


def search(ending: str) -> Callable[[Path], None]:
    def look(home: Path) -> None:
        file = open_embeddings(home / f"photos.{ending}")
        nearest(np.ones((1, file.about.dim), dtype=np.float32), file.vectors, 3)

    return look


def from_cache(home: Path) -> None:
    """Nobody may get other pixels than those in the files."""
    held = cached(find_images(home / "photos"), side=8, root=home / "cache").images
    truth = cached(find_images(home / "photos"), side=8, root=home / "anew").images
    assert torch.equal(torch.as_tensor(held[torch.arange(12)]), torch.as_tensor(truth[torch.arange(12)]))


TARGETS: dict[str, Callable[[Path], object]] = {
    "run/config.json": settings,
    "run/environment.json": history,
    "run/metrics.jsonl": history,
    "run/checkpoint.pt": lambda home: load_method(home / "run"),
    "run/evaluation/metrics.jsonl": scores,
    "run/evaluation/*.safetensors": scores,
    "results/main.jsonl": tables,
    "shards/0.tar": archive,
    "strange.pth": lambda home: load_encoder(home / "strange.pth", name=ENCODER),
    "parts/*.json": parts,
    "parts/*.npy": parts,
    "run/encoder.safetensors": lambda home: load_encoder(home / "run" / "encoder.safetensors"),
    "run/embedder/embedder.json": embedder,
    "run/embedder/weights.safetensors": embedder,
    "head/head.json": lambda home: read_head(home / "head"),
    "head/head.safetensors": lambda home: read_head(home / "head"),
    "list.csv": lists,
    "photos.npz": search("npz"),
    "photos.parquet": search("parquet"),
    "photos.map/about.json": search("map"),
    "photos.map/rows.*.csv": search("map"),
    "photos.map/vector.*.npy": search("map"),
    "cache/*/about.json": from_cache,
    "cache/*/sums.u32": from_cache,
    "cache/*/aspect.f32": from_cache,
    "cache/*/images.u8": from_cache,
    "cache/hashes/*": from_cache,
    **{f"{name}/{NEEDED[name]}": partial(published, name) for name in PUBLISHED},
}


KNOWN = {".json": mutated_json, ".jsonl": mutated_lines, ".tar": mutated_tar}


class Files:
    """An attempt with one damaged file, in a folder that has one of everything."""

    def __init__(self, place: Path) -> None:
        self.whole, self.folder = place / "whole", place / "attempt"
        lay_out(self.whole)
        shutil.copytree(self.whole, self.folder)
        self.touched = Path()

    def __call__(self, rng: np.random.Generator) -> str:
        """How the file was read."""
        name = list(TARGETS)[rng.integers(len(TARGETS))]
        self._mend(name)
        target = min(self.folder.glob(name))
        content = target.read_bytes()
        knowingly = target.suffix in KNOWN and rng.random() < 0.5
        target.unlink()  # it may be a link to another one
        target.write_bytes((KNOWN[target.suffix] if knowingly else mutated)(content, rng))
        try:
            TARGETS[name](self.folder)
        except SENTENCES as error:
            assert str(error) and "\n" not in str(error), f"more than one sentence for {name}: {error}"
            return f"{name} refused"
        return f"{name} read"

    def _mend(self, name: str) -> None:
        """The part of the folder that the last attempt touched, as it was."""
        for part in {self.touched, Path(name.split("/", maxsplit=1)[0])} - {Path()}:
            place = self.folder / part
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
            whole = self.whole / part
            shutil.copytree(whole, place) if whole.is_dir() else shutil.copy(whole, place)
        shutil.rmtree(self.folder / "anew", ignore_errors=True)
        self.touched = Path(name.split("/", maxsplit=1)[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        main(Files(Path(place)), __doc__ or "")
