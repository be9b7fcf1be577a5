"""What is exported says what PyTorch says; what a format cannot hold is refused; nothing is sent unasked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.torch_version import TorchVersion
from torchvision.models.resnet import Bottleneck, ResNet

import wingbar
from wingbar.cli import main
from wingbar.config.configfile import to_json
from wingbar.config.settings import Config, changed
from wingbar.data.colour import normalise
from wingbar.errors import UserError
from wingbar.files import append
from wingbar.metrics.fewlabels import fit_few
from wingbar.models.embedder import Embedder, embedder_of, load_embedder, save_embedder, save_folder
from wingbar.models.encoder import Encoder
from wingbar.models.trunks import _move_stride, _read_resnet, build_encoder
from wingbar.models.whitening import fit_whitening, whiten
from wingbar.train.stages import build_method
from wingbar.types import MEAN, STD
from wingbar.use.classify.head import head_of, read_head, save_head
from wingbar.use.export.deployed import check, pixels
from wingbar.use.export.hub import licence_of
from wingbar.use.export.program import NOTES, write_onnx, write_program
from wingbar.use.export.timmfolder import Unheld, write_timm
from wingbar.use.loaded import maker_of

SIZE = 32
new = pytest.mark.skipif(torch.__version__ < "2.8", reason="programs need torch 2.8")  # a TorchVersion
SOURCES = str(Path(wingbar.__file__).parent)


class Pooled(nn.Module):
    """A method with a feature of its own, and a head that it does not need."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.dim, 7)

    def embed(self, image):
        seen = self.encoder(image)
        return torch.cat([seen.vector, seen.map.amax(dim=(2, 3))], dim=1)


def encoder(name, layout="pytorch"):
    """Seeded, with BatchNorm's statistics as after training."""
    torch.manual_seed(0)
    if layout == "caffe":
        trunk = ResNet(Bottleneck, [1, 1, 1, 1])
        trunk.fc = nn.Identity()
        built = Encoder(trunk, _read_resnet, name=name, dim=2048, layout=layout)
        _move_stride(built)
    else:
        built = build_encoder(name)
    for part in built.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 1.0
    with torch.no_grad():
        built.train()(torch.rand(8, 3, 64, 64))
    return built.eval()


def embedder(kind):
    plain = encoder("timm/test_vit" if kind == "white" else "timm/test_resnet")
    if kind == "white":
        white = fit_whitening(torch.randn(60, plain.dim, generator=torch.Generator().manual_seed(1)))
        return Embedder(plain, size=SIZE, whitening=white).eval()
    if kind == "own":
        return Embedder(plain, size=SIZE, own=Pooled(plain), config=Config()).eval()
    caffe = kind == "caffe"
    return Embedder(encoder("torchvision/resnet50", "caffe") if caffe else plain, size=SIZE).eval()


@torch.no_grad()
def expected(made, images):
    """The vectors by another way: NumPy's normalisation, the trunk, whitening in float64."""
    channel = np.asarray(images, dtype=np.float64).transpose(0, 2, 3, 1)
    image = torch.from_numpy(((channel - MEAN) / STD).transpose(0, 3, 1, 2).copy()).float()
    feature = made.encoder(image).vector if made.own is None else made.own.embed(image)
    return feature if made.whitening is None else whiten(feature, made.whitening)


def assert_same(found, wanted):
    assert found.shape == wanted.shape and (found - wanted).abs().max() <= 2e-6 * wanted.abs().max()
    assert wanted.std(dim=1).min() > 0  # there is something to compare


# --- programs --------------------------------------------------------------------------------------------------------


@new
def test_programs_are_compared_with_the_embedder(tmp_path):
    found = write_program(embedder("caffe"), {}, tmp_path / "a.pt2")
    assert found.difference <= 1e-6 * found.largest and found.largest > 0.1


def test_programs_of_an_older_torch_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.7.1"))
    with pytest.raises(UserError, match=r"need torch 2\.8 or newer, this is 2\.7\.1"):
        write_program(embedder("caffe"), {}, tmp_path / "a.pt2")
    assert not list(tmp_path.iterdir()) and TorchVersion("2.10") >= "2.8"


@new
def test_torch_alone_loads_a_program_with_normalisation_and_whitening_inside(tmp_path):
    made, path, about, extra = embedder("white"), tmp_path / "a.pt2", {"size": SIZE}, {NOTES: ""}
    write_program(made, about, path)
    program = torch.export.load(path, extra_files=extra)
    embed = program.module()
    for batch in (1, 8):
        images = torch.rand(batch, 3, SIZE, SIZE)
        assert_same(embed(images), expected(made, images))
    assert json.loads(extra[NOTES]) == about and SOURCES.encode() not in path.read_bytes()


@new
def test_the_same_weights_are_the_same_bytes_and_what_is_refused_changes_nothing(tmp_path, monkeypatch):
    made, path, seen = embedder("own"), tmp_path / "a.pt2", []
    assert write_program(made, {}, path).difference == 0
    first = path.read_bytes()
    assert b"conv1" in first and b"own.head.weight" not in first and b"num_batches" not in first
    made.own.head.reset_parameters()  # no vector depends on it

    def refuse(run, embedder, head):
        seen.extend(file.read_bytes() for file in tmp_path.iterdir() if file != path)
        raise UserError("differs")

    monkeypatch.setattr("wingbar.use.export.program.check", refuse)
    with pytest.raises(UserError, match="differs"):
        write_program(made, {}, path)
    assert seen == [first] and path.read_bytes() == first and list(tmp_path.iterdir()) == [path]


@new
def test_what_cannot_be_traced_is_one_sentence(tmp_path):
    made = embedder("own")
    made.own.embed = lambda image: made.encoder(image).vector * float(image.sum())
    with pytest.raises(UserError, match=r"torch\.export makes no program of timm/test_resnet"):
        write_program(made, {}, tmp_path / "a.pt2")
    assert not list(tmp_path.iterdir())


def test_what_says_something_else_is_not_kept():
    made = embedder("resnet")
    shift = made.encoder.dim * [0.0]
    with torch.no_grad():
        largest = float(expected(made, pixels(5, SIZE)).abs().max())
    for wrong in (1e-3 * largest, float("nan")):
        shift[3] = wrong
        with pytest.raises(UserError, match=r"differs from PyTorch by .* is not kept"):
            check(lambda images: expected(made, images) + torch.tensor(shift), made)
    shift[3] = 1e-5 * largest
    found = check(lambda images: expected(made, images) + torch.tensor(shift), made)
    assert found.difference == pytest.approx(1e-5 * largest, rel=0.1)


# --- ONNX ------------------------------------------------------------------------------------------------------------


@new
def test_onnx_without_its_packages_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("wingbar.use.export.options.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        main(["export", "resnet18", "--encoder.weights", "random", "--to", "onnx", "-o", str(tmp_path / "a.onnx")])
    assert stop.value.code == 2 and "pip install wingbar[export]" in capsys.readouterr().err


@new
def test_onnx_says_what_the_embedder_says(tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install wingbar[export]")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install wingbar[export]")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install wingbar[export]")
    made, path = embedder("white"), tmp_path / "a.onnx"
    write_onnx(made, {"size": SIZE, "recipe": "moco"}, path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (1, 3, 8):
        images = torch.rand(batch, 3, SIZE, SIZE)
        (found,) = session.run(["vector"], {"image": images.numpy()})
        wanted = expected(made, images)
        assert (torch.from_numpy(found) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert {prop.key: prop.value for prop in model.metadata_props} == {"size": str(SIZE), "recipe": "moco"}
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert SOURCES.encode() not in path.read_bytes() and b"site-packages" not in path.read_bytes()
    first = path.read_bytes()
    write_onnx(made, {"size": SIZE, "recipe": "moco"}, path)
    assert path.read_bytes() == first


@new
@pytest.mark.parametrize("wrapper", ["lcr", "sam"])
def test_onnx_has_the_feature_of_a_method_that_pools_in_its_own_way(wrapper, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install wingbar[export]")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install wingbar[export]")
    trunk = {"encoder.name": "timm/test_resnet", "encoder.weights": "random", "method.queue": 16, "data.batch": 8}
    config = changed(Config(), {**trunk, "wrappers": (wrapper,), "data.size": 64, "run.device": "cpu"})
    method = build_method(config, steps=10, images=8).eval()
    save_embedder(embedder_of(method, config), tmp_path)
    write_onnx(load_embedder(tmp_path / "embedder"), {}, tmp_path / "a.onnx")
    images = torch.rand(3, 3, 64, 64)
    (found,) = runtime.InferenceSession(tmp_path / "a.onnx").run(None, {"image": images.numpy()})
    with torch.no_grad():
        wanted = method.embed(normalise(images))
        pooled = method.encoder(normalise(images)).vector
    assert (torch.from_numpy(found) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert pooled.shape != wanted.shape or (pooled - wanted).abs().max() > 0.01 * wanted.abs().max()


# --- timm ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["timm/test_resnet", "timm/test_vit", "torchvision/resnet18"])
def test_timm_opens_its_folder(name, tmp_path):
    made = Embedder(encoder(name), size=64).eval()
    checked = write_timm(made, tmp_path, licence="apache-2.0")
    opened = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(opened(images), made.encoder(images).vector)
    data = timm.data.resolve_model_data_config(opened)
    prepared = [tuple(data[name]) for name in ("input_size", "mean", "std")]
    assert prepared == [(3, 64, 64), MEAN, STD] and data["crop_pct"] == 0.875
    assert checked.difference == 0 and opened.pretrained_cfg["license"] == "apache-2.0"
    assert timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=5)(images).shape == (3, 5)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: embedder("white"), "whitened"),
        (lambda: embedder("own"), "feature of its own"),
        (lambda: embedder("caffe"), "caffe"),
        (lambda: Embedder(encoder("torchvision/squeezenet1_1"), size=64), "timm has no squeezenet1_1"),
        (lambda: Embedder(encoder("torchvision/efficientnet_b0"), size=64), "other weights than torchvision"),
    ],
)
def test_what_timm_cannot_hold_is_refused_with_what_can(made, why, tmp_path):
    with pytest.raises(Unheld, match=re.escape(why)) as refused:
        write_timm(made().eval(), tmp_path, licence="")
    assert "--to program and --to onnx can" in str(refused.value) and not list(tmp_path.iterdir())


# --- runs, and a hub -------------------------------------------------------------------------------------------------


def run_folder(out, made, **settings):
    """What a finished run leaves, as far as it is exported."""
    own = {"data.root": "/home/somebody/birds", "encoder.name": "timm/test_resnet", "encoder.weights": "/home/w.pth"}
    config = changed(Config(), {**own, "data.size": SIZE, "run.out": str(out), "optim.lr": 0.5, **settings})
    out.mkdir()
    (out / "config.json").write_text(to_json(config))
    made_with = {"wingbar": "0", "recipe": "default", "images": 5994, "split": "5b1e", "unreadable": 0, "cores": 2}
    (out / "environment.json").write_text(json.dumps(made_with))
    save_embedder(made, out, recipe="default")
    line = {
        **{"weights": made.identity, "metric": "rank-1", "value": 0.3, "low": 0.28, "high": 0.33, "n": 5794},
        **{"bn": "as-trained", "view": "centre", "size": SIZE, "split": {"test": "ab"}, "whiten": None},
    }
    later = {**line, "value": 0.5, "low": 0.49, "high": 0.52}
    white, other = {**line, "value": 0.6, "low": 0.59, "high": 0.61, "whiten": 0.5}, {**line, "weights": "other"}
    append(out / "evaluation" / "metrics.jsonl", [line, later, white, {**other, "value": 0.9}])
    return out


class Hub:
    """In place of huggingface_hub.HfApi."""

    def __init__(self, refuses=False):
        self.refuses, self.made, self.sent = refuses, [], []

    def create_repo(self, repo, *, private, exist_ok):
        if self.refuses:
            raise ConnectionError("no route\nto host")
        self.made.append((repo, private, exist_ok))

    def upload_folder(self, *, repo_id, folder_path, allow_patterns, commit_message):
        self.sent.append((repo_id, {name: (Path(folder_path) / name).read_bytes() for name in allow_patterns}))


@pytest.fixture
def hub(monkeypatch):
    def install(**how):
        one = Hub(**how)
        monkeypatch.setattr("huggingface_hub.HfApi", lambda: one)
        return one

    return install


def test_a_hub_gets_a_card_of_the_record_and_only_when_asked(hub, tmp_path, capsys):
    there = hub()
    run = run_folder(tmp_path / "a", embedder("resnet"), **{"data.name": "cub200"})
    main(["export", str(run), "--to", "hub", "--repo", "me/birds"])
    said, card = capsys.readouterr().out, (run / "hub" / "README.md").read_text()
    assert "Nothing was sent to me/birds" in said and "Largest difference from PyTorch" in said and not there.made
    assert "| rank-1 | 50.0 ±2.0 | 5,794 |" in card and "| rank-1 | 60.0 ±1.0 |" in card and "whitened 0.5" in card
    assert "30.0" not in card and "90.0" not in card  # an earlier score, and one of other weights
    assert "5,994 images without labels" in card and "- optim.lr: 0.5" in card and "hf-hub:me/birds" in card
    assert "non-commercial research" in card and "people" in card and "/home" not in card and str(tmp_path) not in card
    before = {path.name: path.read_bytes() for path in (run / "hub").iterdir()}
    assert set(before) == {"README.md", "config.json", "model.safetensors"}
    main(["export", str(run), "--to", "hub", "--repo", "me/birds", "--push"])
    assert there.made == [("me/birds", True, True)] and there.sent == [("me/birds", before)]  # private, the same bytes


def test_what_timm_cannot_hold_goes_to_a_hub_as_it_is(tmp_path, capsys):
    made = embedder("white")
    run = run_folder(tmp_path / "a", made)
    out = tmp_path / "sent"
    main(["export", str(run), "--to", "hub", "-o", str(out)])
    again, images = load_embedder(out), torch.randn(2, 3, SIZE, SIZE)
    with torch.no_grad():
        assert torch.equal(again(images), made(images))
    assert "--repo OWNER/NAME --push does" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["export", str(out), "--to", "timm", "-o", str(tmp_path / "timm")])  # an embedder's folder, too
    assert "its features are whitened" in capsys.readouterr().err and not (tmp_path / "timm").exists()


def test_a_hub_that_cannot_be_reached_is_one_sentence(hub, tmp_path, capsys):
    hub(refuses=True)
    run = run_folder(tmp_path / "a", embedder("resnet"))
    with pytest.raises(SystemExit) as stop:
        main(["export", str(run), "--to", "hub", "--repo", "me/birds", "--push"])
    said = capsys.readouterr()
    assert stop.value.code == 2 and "could not be sent to me/birds: no route; it is whole" in said.err
    assert (run / "hub" / "README.md").exists()


def test_a_weights_file_becomes_a_folder_of_timm(tmp_path, capsys):
    made = embedder("resnet")
    save_embedder(made, tmp_path)
    out = tmp_path / "timm"
    main(["export", str(tmp_path / "encoder.safetensors"), "--to", "timm", "-o", str(out)])
    said = capsys.readouterr().out
    assert f'timm.create_model("local-dir:{out}", pretrained=True)' in said
    assert load_file(out / "model.safetensors").keys() == made.encoder.trunk.state_dict().keys()
    (out / "mine.txt").touch()
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path / "encoder.safetensors"), "--to", "timm", "-o", str(out)])
    assert "mine.txt" in capsys.readouterr().err


def test_licences_are_what_library_and_file_say(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "w.safetensors", metadata={"licence": "MIT"})
    assert licence_of("", str(tmp_path / "w.safetensors")) == "MIT"
    assert licence_of("timm/resnet50", "a1_in1k") == "apache-2.0"
    assert "SWAG" in licence_of("vit_b_16", "IMAGENET1K_SWAG_E2E_V1")
    for name, weights in [("resnet50", "IMAGENET1K_V1"), ("resnet50", "random"), ("", str(tmp_path / "gone.pth"))]:
        assert licence_of(name, weights) == ""


# --- classifiers -----------------------------------------------------------------------------------------------------

CLASSES = ("auk", "tern", "wren")


def classifier(folder, made):
    """What `wingbar classify` leaves: an embedder, and a head of noisy pictures in three colours."""
    colour = torch.eye(3).repeat_interleave(10, dim=0)[..., None, None]
    pictures = 0.5 * colour + 0.5 * torch.rand(30, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    found = fit_few(expected(made, pictures).float(), torch.arange(3).repeat_interleave(10))
    maker = maker_of("", made, size=SIZE)
    save_folder(made, folder, recipe="default")
    head = head_of(found, CLASSES, refuse=0.1, fingerprint=maker.fingerprint)
    sure = {"accuracy": found.accuracy._asdict(), "calibration_error": found.error}
    save_head(head, folder, {"kind": "logistic regression", "labelled": 30, "cross_validated": sure})
    return pictures


def by_hand(vectors, folder):
    """Probabilities and nearness from the file's numbers, in NumPy."""
    kept = {name: value.double().numpy() for name, value in load_file(folder / "head.safetensors").items()}
    vectors = vectors.double().numpy()
    root = np.sign(vectors) * np.sqrt(np.abs(vectors))
    root /= np.linalg.norm(root, axis=1, keepdims=True)
    power = np.exp(root @ kept["weight"] + kept["bias"])
    seen = (root - kept["mean"]) / np.linalg.norm(root - kept["mean"], axis=1, keepdims=True)
    return power / power.sum(axis=1, keepdims=True), (seen @ kept["centres"].T).max(axis=1)


@new
@pytest.mark.parametrize("kind", ["white", "resnet"])
@pytest.mark.parametrize("to", ["program", "onnx"])
def test_a_head_is_exported_with_its_embedder(to, kind, tmp_path, capsys):
    made, folder, out = embedder(kind), tmp_path / "birds", tmp_path / f"birds.{'onnx' if to == 'onnx' else 'pt2'}"
    runtime = pytest.importorskip("onnxruntime", reason="pip install wingbar[export]") if to == "onnx" else None
    pictures = classifier(folder, made)
    main(["export", str(folder), "--to", to, "-o", str(out)])
    said = capsys.readouterr().out
    assert "probabilities and nearness" in said and "probability of 3 classes" in said
    for batch in (1, 4, 30):
        images = pictures[-batch:]
        if runtime is None:
            extra = {NOTES: ""}
            found = torch.export.load(out, extra_files=extra).module()(images)
            about = json.loads(extra[NOTES])
        else:
            session = runtime.InferenceSession(out, providers=["CPUExecutionProvider"])
            names = [one.name for one in session.get_outputs()]
            found = dict(zip(names, map(torch.from_numpy, session.run(None, {"image": images.numpy()})), strict=True))
            words = session.get_modelmeta().custom_metadata_map
            about = {
                "classes": json.loads(words["classes"]),
                "none_of_these_below": float(words["none_of_these_below"]),
            }
        wanted = expected(made, images)
        probability, near = by_hand(wanted, folder)
        assert list(found) == ["vector", "probability", "near"] and len(found["vector"]) == batch
        assert (found["vector"] - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        assert np.abs(found["probability"].numpy() - probability).max() < 1e-4 and probability.max() > 0.6
        assert np.abs(found["near"].numpy() - near).max() < 1e-4
    assert found["probability"].argmax(dim=1).tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert about["classes"] == list(CLASSES) and -1 < about["none_of_these_below"] < 1


def test_an_exported_head_that_says_something_else_is_not_kept(tmp_path):
    made = embedder("white")
    classifier(tmp_path, made)
    head = read_head(tmp_path)

    def run(images):
        vector = made(normalise(images))
        return {"vector": vector, **head(vector)._asdict()}

    assert check(run, made, head).classes == 0
    with pytest.raises(UserError, match="differs from PyTorch"):
        check(lambda images: {**run(images), "near": run(images)["near"] + 1e-3}, made, head)


def test_a_head_needs_its_own_embedder_and_is_no_timm(tmp_path, capsys):
    classifier(tmp_path / "birds", embedder("resnet"))
    for words, why in {
        ("--to", "program", "--data.size", "64"): "another size of images",
        ("--to", "timm"): "rooted vectors, and timm's are linear on the vectors themselves; --to program and --to onnx",
        ("--to", "hub"): "nor a classifier in a run's folder",
    }.items():
        with pytest.raises(SystemExit) as stop:
            main(["export", str(tmp_path / "birds"), *words, "-o", str(tmp_path / "a.pt2")])
        assert stop.value.code == 2 and why in capsys.readouterr().err and not (tmp_path / "a.pt2").exists()


def test_a_hub_gets_a_runs_classifier_with_its_classes_on_the_card(tmp_path, capsys):
    made, out = embedder("resnet"), tmp_path / "hub"
    run = run_folder(tmp_path / "a", made)
    classifier(run / "classifier", made)
    main(["export", str(run / "classifier"), "--to", "hub", "-o", str(out)])
    card = (out / "README.md").read_text()
    assert "3: auk, tern, wren" in card and "30 labelled images" in card and "| rank-1 | 50.0 ±2.0 |" in card
    assert "pipeline_tag: image-classification" in card and str(tmp_path) not in card
    assert read_head(out).classes == CLASSES and wingbar.load(out, device="cpu").head is not None
    torch.manual_seed(1)
    for part in made.encoder.parameters():
        part.data.add_(0.1 * torch.randn_like(part))
    classifier(run / "classifier", made)
    with pytest.raises(SystemExit):
        main(["export", str(run / "classifier"), "--to", "hub", "-o", str(out)])
    assert "of other weights than the run it lies in" in capsys.readouterr().err
