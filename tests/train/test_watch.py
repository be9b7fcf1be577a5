"""What is looked at while a run trains: real collapses are found, and the training does not notice."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext, redirect_stderr
from functools import cache

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.neighbors import NearestNeighbors
from torch import nn

from wingbar import cli, resume, run
from wingbar.config.configfile import read_config
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed
from wingbar.data.datasets import lookalike_store
from wingbar.data.store import take
from wingbar.errors import Collapsed, Interrupted
from wingbar.methods.losses import negative_cosine
from wingbar.metrics import unlabelled
from wingbar.metrics.diagnosis import diagnose, read_record, signs_of
from wingbar.metrics.features import embed_store
from wingbar.metrics.knn import knn_correct
from wingbar.metrics.linear import linear_probe
from wingbar.metrics.verdicts import judge
from wingbar.models.trunks import build_encoder
from wingbar.models.weights import save_encoder
from wingbar.train import checkpoint, course, machine, runs, watch
from wingbar.train.stages import build_method, plain_images
from wingbar.train.watch import CollapseAlarm, build_looks

SMALL = {"data.size": 32, "data.stored": 40, "run.tensorboard": False, "run.device": "cpu"}
SIMSIAM = {
    "method.name": "simsiam",
    "method.dim": 64,
    "method.hidden": 16,
    "optim.lr": 0.2,
    "optim.lr_rule": "literal",
}
MOCO = {"method.queue": 128, "method.momentum": 0.99, "optim.lr": 0.03}


def config(out, settings):
    return changed(recipe_named("try-moco"), {**SMALL, "run.out": str(out), **settings})


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


# --- real trainings --------------------------------------------------------------------------------------------------

BIRDS = {"data.batch": 32, "data.images": 256, "run.epochs": 5}


@pytest.fixture(scope="module")
def birds():
    return lookalike_store("train", side=40, classes=8, images=256, loud=0.2)


def without_predictor(method):
    method.predictor = nn.Identity()


def without_stop_gradient(method):
    def compare(first, second):
        one, two = method.predictor(first), method.predictor(second)
        return negative_cosine(one, second) / 2 + negative_cosine(two, first) / 2

    method.compare = compare


def spoil(monkeypatch, change):
    """Runs train a method that is changed after it was built."""

    def build(settings, **options):
        method = build_method(settings, **options)
        change(method)
        return method

    monkeypatch.setattr(runs, "build_method", build)


@pytest.fixture(scope="module")
def healthy(birds, tmp_path_factory):
    """A method's training that goes well, and what it said, once for all tests."""

    @cache
    def trained(name):
        settings = {**BIRDS, **{"simsiam": SIMSIAM, "moco": MOCO}[name], "run.doctor": len(birds.images)}
        said = io.StringIO()
        with redirect_stderr(said):
            result = run(config(tmp_path_factory.mktemp(name) / "run", settings), store=birds)
        return result, said.getvalue()

    return trained


@pytest.mark.parametrize("name", ["simsiam", "moco"])
def test_a_healthy_training_is_called_healthy(name, healthy, birds):
    result, said = healthy(name)
    assert "collapsed" not in said
    features = embed_store(result.method, birds, plain_images(read_config(result.out / "config.json")))
    with torch.no_grad():
        embeddings = result.method.project(features)
    found = diagnose(features, embeddings=embeddings, record=read_record(result.out))
    assert (found.verdict, found.sentences) == ("healthy", ("Nothing points to a collapse.",))
    assert found.values["rank"] == pytest.approx(lines(result.out)[-1]["doctor/rank"], rel=1e-4)


def test_an_untrained_encoder_is_called_what_it_is(birds, tmp_path):
    settings = config(tmp_path / "run", {**BIRDS, **MOCO})
    found = diagnose(embed_store(build_method(settings), birds, plain_images(settings)))
    assert found.verdict == "warning" and "untrained" in found.sentences[0]


def test_simsiam_without_predictor_is_stopped_with_everything_saved(birds, tmp_path, monkeypatch):
    """Its embeddings end in two opposite points: well spread, on a line."""
    spoil(monkeypatch, without_predictor)
    with pytest.raises(Collapsed, match=r"(?s)after epoch \d.*on a line.*checkpoint\.pt"):
        run(config(tmp_path / "run", {**BIRDS, **SIMSIAM, "run.stop_on_collapse": True}), store=birds, quiet=True)
    last = lines(tmp_path / "run")[-1]
    place, _ = checkpoint.read(tmp_path / "run" / "checkpoint.pt")
    assert place.step == last["step"] and last["step"] % 8 == 0
    assert last["doctor/embedding/std"] > 0.7 * last["doctor/embedding/healthy_std"]
    assert judge(signs_of(last)).verdict == "collapsed"
    assert not (tmp_path / "run" / "encoder.safetensors").exists()


def test_simsiam_without_stop_gradient_is_noted_once(birds, tmp_path, monkeypatch, capsys):
    spoil(monkeypatch, without_stop_gradient)
    run(config(tmp_path / "run", {**BIRDS, **SIMSIAM}), store=birds)
    assert judge(signs_of(lines(tmp_path / "run")[-1])).verdict == "collapsed"
    assert capsys.readouterr().err.count("note: the encoder has collapsed after epoch") == 1
    assert (tmp_path / "run" / "encoder.safetensors").exists()


def test_training_that_spoils_a_good_encoder_is_noted_after_its_first_epoch(healthy, birds, tmp_path, capsys):
    """Frozen BatchNorm and four times the rate, from an encoder that MoCo has trained."""
    good = healthy("moco")[0].out / "encoder.safetensors"
    rash = {**BIRDS, **MOCO, "encoder.weights": str(good), "encoder.batchnorm": "frozen", "optim.lr": 0.12}
    run(config(tmp_path / "run", {**rash, "run.epochs": 1}), store=birds)
    said = capsys.readouterr().err
    assert said.count("note: the encoder has collapsed after epoch 1.") == 1
    assert judge(signs_of(lines(tmp_path / "run")[-1])).verdict == "warning"  # nothing else would have told


def test_a_training_ends_with_what_is_known_of_it_without_labels(birds, tmp_path, monkeypatch, capsys):
    few, encoder = take(birds, torch.arange(64)), build_encoder(recipe_named("try-moco").encoder.name)
    save_encoder(encoder, tmp_path / "begun.safetensors", size=32)
    settings = {**MOCO, "data.batch": 32, "run.epochs": 1, "run.doctor": 0, "run.pictures_every": 0}
    begun = {"encoder.weights": str(tmp_path / "begun.safetensors")}
    run(config(tmp_path / "few", {**settings, **begun}), store=few)
    for module in (unlabelled, watch):
        monkeypatch.setattr(module, "LEAST", 64)
    run(config(tmp_path / "random", settings), store=few)
    assert "nearest" not in capsys.readouterr().err  # of few images nothing is known; nobody keeps random weights
    result = run(config(tmp_path / "run", {**settings, **begun}), store=few)
    plain = plain_images(config("", {"data.plain": "centre"}))(few.images, few.aspect)
    with torch.no_grad():
        before, after = (nearest_others(one.eval()(plain).vector.numpy(), 20) for one in (encoder, result.encoder))
    kept = sum(len(set(one) & set(other)) for one, other in zip(before, after, strict=True)) / 20 / 64
    assert f" {kept:.0%} of each image's 20 nearest" in " ".join(capsys.readouterr().err.split())


def nearest_others(features, count):
    found = NearestNeighbors(n_neighbors=count, metric="cosine").fit(features)
    return found.kneighbors(return_distance=False).tolist()


def test_the_command_ends_with_its_own_exit_code(tmp_path, monkeypatch, capsys):
    def collapse(*_, **__):
        collapsed = Collapsed("the encoder has collapsed.")
        collapsed.add_note("Its state is in a file.")
        raise collapsed

    monkeypatch.setattr(runs, "run", collapse)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "try-moco", "--out", str(tmp_path / "run"), "--run.stop-on-collapse"])
    said = capsys.readouterr().err
    assert stopped.value.code == 3 and said == "wingbar: the encoder has collapsed. Its state is in a file\n"


def test_lines_without_the_doctor_do_not_alarm():
    said: list[str] = []
    CollapseAlarm(said.append)({"step": 3, "base": -1.0, "chance/base": 0.0})
    assert not said


# --- nothing is disturbed --------------------------------------------------------------------------------------------

TINY = {"data.batch": 8, "data.images": 43, "data.classes": 4, "run.epochs": 4, "run.log_every": 3, "method.queue": 20}
WATCHED = {"run.probe_every": 2, "run.doctor": 16}
PER_EPOCH = 43 // 8


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    out = tmp_path_factory.mktemp("watched") / "run"
    return run(config(out, {**TINY, **WATCHED}), quiet=True)


def test_a_run_has_the_same_bits_watched_or_not(watched, tmp_path):
    run(config(tmp_path / "run", {**TINY, "run.doctor": 0}), quiet=True)
    assert_same(*(load_file(out / "encoder.safetensors") for out in (watched.out, tmp_path / "run")))
    (_, one), (_, other) = (checkpoint.read(out / "checkpoint.pt") for out in (watched.out, tmp_path / "run"))
    assert torch.equal(one["rng"]["cpu"], other["rng"]["cpu"])
    assert_same(one["method"], other["method"])
    assert_same(one["optimizers"][0]["state"], other["optimizers"][0]["state"])
    assert not any("doctor" in name or "probe" in name for line in lines(tmp_path / "run") for name in line)


def assert_same(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, dict):
            assert_same(value, other[key])
        else:
            assert torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]


def test_every_epoch_is_looked_at_and_every_second_one_probed(watched):
    seen = {line["step"]: line for line in lines(watched.out)}
    assert [step for step in seen if "doctor/std" in seen[step]] == [PER_EPOCH * epoch for epoch in (1, 2, 3, 4)]
    assert [step for step in seen if "probe/knn" in seen[step]] == [PER_EPOCH * epoch for epoch in (2, 4)]
    assert all("total" in line and "chance/base" in line for line in seen.values())


def test_probes_are_knn_and_linear_probe_of_the_splits(watched):
    """At the last step the encoder is the one that is saved, and the splits are smaller than the cap."""
    settings = config(watched.out, TINY)
    splits = [lookalike_store(split, side=40, classes=4, images=43, loud=0.2) for split in ("train", "test")]
    (seen, unseen), (known, wanted) = (
        [embed_store(watched.method, split, plain_images(settings)) for split in splits],
        [split.labels for split in splits],
    )
    line = lines(watched.out)[-1]
    assert line["probe/knn"] == pytest.approx(knn_correct(seen, known, unseen, wanted).float().mean().item())
    right = linear_probe(seen, known, unseen, wanted, weight_decay=(0.1, 0.01, 0.001), iterations=100)
    assert line["probe/linear"] == pytest.approx(right.float().mean().item())


def test_an_interrupted_run_sees_the_same(watched, tmp_path, monkeypatch):
    """Stopped after the third step of the second epoch, and again right at its end."""
    for stop in (PER_EPOCH + 3, PER_EPOCH - 3):
        asked = iter([False] * (stop - 1) + [True])
        monkeypatch.setattr(course, "stop_signals", lambda asked=asked, **_: nullcontext(lambda: next(asked)))
        with pytest.raises(Interrupted):
            if (tmp_path / "run").exists():
                resume(tmp_path / "run")
            else:
                run(config(tmp_path / "run", {**TINY, **WATCHED}), quiet=True)
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert looks(tmp_path / "run") == looks(watched.out)


def looks(out):
    return [
        (line["step"], {name: value for name, value in line.items() if name.startswith(("doctor/", "probe/"))})
        for line in lines(out)
        if "doctor/std" in line
    ]


def test_weights_that_are_no_numbers_are_left_to_the_losses(tmp_path):
    settings, store = (
        config(tmp_path / "run", {**TINY, **WATCHED}),
        lookalike_store("train", side=40, classes=4, images=43, loud=0.2),
    )
    (stage,) = runs.build_stages(settings, build_method(settings), store, torch.device("cpu"))
    for parameter in stage.method.encoder.parameters():
        parameter.data.fill_(torch.nan)
    assert [look.measure() for look in build_looks(settings, stage, store)] == [{}, {}]


def test_a_look_runs_what_is_written_and_leaves_what_is_compiled():
    encoder = build_encoder("timm/test_resnet")
    encoder._compiled_call_impl = compiled = lambda *_: pytest.fail("compiled code was called")
    with pytest.raises(ZeroDivisionError), machine.uncompiled(nn.Sequential(encoder)):
        assert encoder(torch.zeros(2, 3, 32, 32)).vector.shape == (2, encoder.dim)
        raise ZeroDivisionError
    assert encoder._compiled_call_impl is compiled


# --- labels ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    """Twelve pictures in one folder per class."""
    generator = torch.Generator().manual_seed(0)
    for number in range(12):
        place = tmp_path / "photos" / "ab"[number % 2]
        place.mkdir(exist_ok=True, parents=True)
        pixels = torch.randint(0, 256, (40, 40, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(place / f"{number}.png")
    return tmp_path / "photos"


def arguments(photos, out, *more):
    small = ("--data.size=32", "--data.batch=4", "--run.epochs=1", "--device=cpu", "--run.no-tensorboard")
    return ["train", "try-moco", f"--data.root={photos}", f"--out={out}", "--run.probe-every=1", *small, *more]


def test_probes_of_images_without_labels_are_refused_before_any_work(photos, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments(photos, tmp_path / "run"))
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.count("\n") == 1 and "run.probe_every needs labels" in said
    assert not (tmp_path / "run").exists()


def test_probes_of_one_class_are_refused_before_any_work(photos, tmp_path, capsys):
    for path in (photos / "b").iterdir():
        path.rename(photos / "a" / f"b{path.name}")
    (photos / "b").rmdir()
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments(photos, tmp_path / "run", "--data.name=folder"))
    assert stopped.value.code == 2 and "two classes" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_probes_read_the_test_split_of_a_folder_of_classes(photos, tmp_path):
    cli.main(arguments(photos, tmp_path / "run", "--data.name=folder", "--data.options", "test_fraction=0.3"))
    assert 0 <= lines(tmp_path / "run")[-1]["probe/linear"] <= 1
