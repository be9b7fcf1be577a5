"""A method and a wrapper in a package of somebody else's: every command takes them, and no file of ours knows them."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import wingbar
from forked import Command
from wingbar import methods
from wingbar.cli import main
from wingbar.config.configfile import read_config
from wingbar.config.settings import Config, changed
from wingbar.data.datasets import lookalike_store
from wingbar.data.listing import Listing
from wingbar.data.views import centre, plain
from wingbar.errors import UserError
from wingbar.evaluate.doctor.check import embed as embed_listing
from wingbar.evaluate.record import read_lines
from wingbar.metrics.knn import knn_correct
from wingbar.metrics.retrieval import retrieve
from wingbar.models.embedder import embedder_of, load_embedder, open_embedder
from wingbar.models.weights import weights_hash
from wingbar.train import checkpoint
from wingbar.train.saved import load_method
from wingbar.train.stages import build_method, build_views

HERE = Path(__file__).parent
WORDS = [
    *("--method.name", "byolish", "--wrappers", "spreading", "--method.width", "12", "--spreading.weight", "0.2"),
    *("--data.size", "32", "--data.stored", "32", "--data.batch", "8", "--data.images", "24", "--data.classes", "4"),
    *("--run.epochs", "2", "--encoder.name", "timm/test_resnet", "--encoder.weights", "random", "--device", "cpu"),
    *("--run.no-tensorboard", "--run.log-every", "1", "--run.pictures-every", "0", "--run.save-minutes", "0"),
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    """A folder in which a package is installed as pip installs one."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "__init__.py").touch()
    for name in ("byolish", "spreading"):
        shutil.copy(HERE / f"{name}.py", folder / "elsewhere")
    about = folder / "elsewhere-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    names = "byolish = elsewhere.byolish\nspreading = elsewhere.spreading:ENTRY\nbroken = elsewhere.missing\n"
    (about / "entry_points.txt").write_text(f"[wingbar.methods]\n{names}")
    return folder


@pytest.fixture(scope="module", autouse=True)
def installed(packages):
    """For the length of this module."""
    sys.path.insert(0, str(packages))
    methods._homes.cache_clear()
    yield
    sys.path.remove(str(packages))
    methods._homes.cache_clear()
    methods._entry.cache_clear()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Trained without a break."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    main(["train", *WORDS, "--out", str(out)])
    return out


def test_a_killed_run_goes_on_bit_for_bit(run, packages, tmp_path):
    """Optimiser, warm-up, heads first, momentum schedule and the views' state included."""
    process = Command(["train", *WORDS, "--out", str(tmp_path / "run")], tmp_path / "said", packages=packages)
    path = tmp_path / "run" / "checkpoint.pt"
    while process.running and not (path.exists() and checkpoint.read(path)[0].step >= 3):
        time.sleep(0.01)
    process.send(signal.SIGKILL)
    process.ended()
    assert checkpoint.read(path)[0].step < 6 or process.ended() == 0, process.complained.read_text()
    main(["resume", str(tmp_path / "run")])
    first, second = (checkpoint.read(out / "checkpoint.pt")[1] for out in (run, tmp_path / "run"))
    assert_close(first["method"], second["method"], rtol=0, atol=0)
    assert_close(first["views"], second["views"], rtol=0, atol=0)
    assert int(first["views"]["steps"]) == 6 and first["views"]["seen"].sum() == 6 * 8
    lines = [[line for line in read_lines(out / "metrics.jsonl")] for out in (run, tmp_path / "run")]
    assert [line["base"] for line in lines[0]] == [line["base"] for line in lines[1]]
    momenta = [line["momentum"] for line in lines[0]]
    assert momenta[0] == 0.9 and momenta == sorted(momenta) and momenta[-1] > 0.99
    assert [line["lr/encoder"] for line in lines[0]][:2] == [0.0, 0.0]  # half an epoch of three steps, heads alone
    assert all("spread" in line for line in lines[0])


def test_its_own_feature_is_what_every_command_sees(run):
    """Not the trunk's pooled vector: 192 numbers, not 96."""
    method = load_method(run)
    stores = [lookalike_store(split, side=32, classes=4, images=24, loud=1.0) for split in ("train", "test")]
    with torch.no_grad():
        train, test = (method.embed(centre(store.images, store.aspect, size=32)) for store in stores)
    assert train.shape == (24, 192)
    main(
        [
            "evaluate",
            str(run),
            "--protocols",
            "knn",
            "retrieval",
            "doctor",
            "--quiet",
            "--whiten",
            "--no-initialisation",
        ]
    )
    lines = {(line["metric"], line["whiten"]): line for line in read_lines(run / "evaluation" / "metrics.jsonl")}
    labels = [store.labels for store in stores]
    expected = knn_correct(train, labels[0], test, labels[1]).float().mean().item()
    assert lines["kNN", None]["value"] == pytest.approx(expected)
    assert lines["rank-1", None]["value"] == pytest.approx(retrieve(test, labels[1]).rank1.double().mean().item())
    assert lines["rank-1", None]["weights"] == open_embedder(run).identity
    main(["show", str(run), "neighbours", "spread", "--out", str(run / "drawn"), "--formats", "png"])
    assert len(list((run / "drawn").glob("*.png"))) == 2


def test_the_embedder_is_complete_and_holds_no_more_than_it_needs(run):
    saved, method = load_embedder(run / "embedder"), load_method(run)
    image = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert_close(saved(image), method.embed(image), rtol=0, atol=0)
    kept = load_file(run / "embedder" / "weights.safetensors")
    assert "base.scale" in kept and not any("teacher" in name or "predictor" in name for name in kept)
    about = json.loads((run / "embedder" / "embedder.json").read_text())
    assert about["feature"]["method"]["name"] == "byolish" and about["images"]["size"] == 32
    trunk = wingbar.load_encoder(run / "encoder.safetensors")
    assert weights_hash(trunk) == weights_hash(saved.encoder)
    assert embedder_of(method, read_config(run / "config.json")).identity == saved.identity


def test_the_data_doctor_uses_it_too(run):
    store, method = lookalike_store("train", side=32, classes=4, images=6, loud=1.0), load_method(run)
    listing = Listing(Path(), tuple("abcdef"), pixels=store.images)
    found = embed_listing(listing, range(6), open_embedder(run), device=torch.device("cpu"))
    with torch.no_grad():
        assert_close(found, method.embed(plain(store.images, size=32)), rtol=0, atol=0)


def test_report_and_plan_name_it(run, tmp_path, capsys):
    main(["report", str(run), "--out", str(tmp_path / "report.html"), "--protocols", "knn"])
    page = (tmp_path / "report.html").read_text()
    assert "Byolish + spreading" in page and "--method.name byolish" in page
    capsys.readouterr()
    chosen = ["method.name=byolish", 'wrappers=["spreading"]', "data.images=24", "data.size=32"]
    words = ["--rows", "Ours", "--encoder.name", "timm/test_resnet", "--encoder.weights", "random", "--device", "cpu"]
    main(["reproduce", "main", "--data", "lookalike", *words, "--set", *chosen, "--dry-run", "-o", str(tmp_path / "r")])
    assert "new" in capsys.readouterr().out


def test_help_and_mistakes_know_it(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--method.name", "byolish", "--wrappers", "spreading", "--help"])
    said = capsys.readouterr().out
    assert "--method.width" in said and "--spreading.weight" in said and "--method.queue" not in said
    for words, sentence in [
        (["--method.width", "3"], "method.width belongs to Byolish"),
        (["--wrappers", "spreading", "--spreading.weight", "11"], "spreading.weight is 11.0"),
        (["--method.name", "broken"], "elsewhere.missing cannot be imported"),
        (["--method.name", "spreading"], "spreading is a wrapper"),
    ]:
        with pytest.raises(SystemExit) as stop:
            main(["train", *words, "--out", "nowhere"])
        assert stop.value.code == 2 and sentence in capsys.readouterr().err


def test_it_wraps_and_is_wrapped():
    """Pairs around the wrapper around the method, in one list."""
    small = {"data.size": 32, "data.batch": 8, "encoder.name": "timm/test_resnet", "encoder.weights": "random"}
    chosen = {"method.name": "byolish", "wrappers": ["spreading", "pairs"], "pairs.decoder.name": "tiny"}
    config = changed(Config(), {**small, **chosen, "pairs.bank": 16})
    method = build_method(config)
    assert config.title == "Byolish + spreading + pairs"
    assert [type(part).__name__ for part in (method, method.base, method.base.base)] == [
        *("SynthPairs", "Spreading", "Byolish")
    ]
    with pytest.raises(UserError, match="needs a base method with a teacher; Byolish has none"):
        build_method(changed(config, {"pairs.readings.second": "teacher"}))
    assert type(build_views(config)).__name__ == "Wandering"
    assert type(build_views(changed(config, {"data.views": "multicrop"}))).__name__ == "Augment"
