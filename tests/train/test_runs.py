"""A whole run from a folder of somebody's pictures to an encoder, and what it leaves behind."""

import hashlib
import json
import math
import os
import re
import shutil

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import wingbar
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import changed, fitting
from wingbar.errors import UserError
from wingbar.train import progress
from wingbar.train.stages import build_method

SMALL = {
    "data.size": 32,
    "data.stored": 40,
    "data.batch": 8,
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "method.queue": 32,
    "pairs.bank": 16,
    "pairs.kappa": 0.2,
    "pairs.decoder.name": "tiny",
    "pairs.decoder.epochs": 1,
    "run.epochs": 3,
    "run.log_every": 2,
    "run.device": "cpu",
    "data.most_broken": 0.05,
}
ALONE = fitting(SMALL, recipe_named("moco"))  # without pairs


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twenty pictures in nested folders without labels, one of them damaged."""
    folder = tmp_path_factory.mktemp("photos")
    generator = torch.Generator().manual_seed(0)
    for number in range(20):
        place = folder / f"roll {number % 3}"
        place.mkdir(exist_ok=True)
        pixels = torch.randint(0, 256, (30 + number, 50, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(place / f"{number}.png")
    (folder / "damaged.jpg").write_bytes(b"\xff\xd8 no more")
    return folder


@pytest.fixture(scope="module")
def result(photos, tmp_path_factory):
    return wingbar.fit(photos, out=tmp_path_factory.mktemp("runs") / "a", settings=SMALL)


def test_fit_leaves_everything_needed(result, photos):
    names = {path.name for path in result.out.iterdir()}
    assert names == {
        *("config.json", "environment.json", "metrics.jsonl", "checkpoint.pt"),
        *("encoder.safetensors", "embedder", "unreadable.txt", "images.txt", "tensorboard"),
    }
    assert "damaged.jpg" in (result.out / "unreadable.txt").read_text()
    environment = json.loads((result.out / "environment.json").read_text())
    assert environment["images"] == 20 and environment["recipe"] == "default"


def test_saved_encoder_is_the_trained_one(result):
    image = torch.randn(2, 3, 32, 32)
    assert_close(wingbar.load_encoder(result.out / "encoder.safetensors")(image).vector, result.encoder(image).vector)


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_same_share_of_the_teacher_is_kept_however_long_the_training(photos, tmp_path, epochs):
    """Twenty pictures in batches of eight are two steps an epoch."""
    settings = {**ALONE, "wrappers": (), "run.epochs": epochs, "method.kept": 0.25}
    trained = wingbar.fit(photos, out=tmp_path / "a", settings=settings)
    assert trained.method.teacher_encoder.momentum ** (2 * epochs) == pytest.approx(0.25)
    again = wingbar.fit(photos, out=tmp_path / "a", settings={**settings, "run.resume": True})
    assert_close(again.encoder.state_dict(), trained.encoder.state_dict())


def test_a_share_of_the_way_from_the_initialisation_is_kept_also_after_resuming(photos, tmp_path):
    """Weights of the same training, a quarter of the way, by arithmetic; the method itself goes the whole way."""
    settings = {**ALONE, "wrappers": (), "run.epochs": 1}
    whole = wingbar.fit(photos, out=tmp_path / "a", settings=settings).encoder.state_dict()
    first = build_method(changed(recipe_named("moco"), settings)).encoder.state_dict()
    part = {**settings, "encoder.share": 0.25}
    for _ in "trained", "resumed":
        kept = wingbar.fit(photos, out=tmp_path / "b", settings=part).encoder.state_dict()
        expected = {
            name: 0.75 * first[name] + 0.25 * value for name, value in whole.items() if value.is_floating_point()
        }
        assert_close({name: kept[name] for name in expected}, expected)
        part["run.resume"] = True


def test_two_answers_to_how_fast_the_teacher_follows_are_refused(photos, tmp_path):
    with pytest.raises(UserError, match="leave one of them out"):
        wingbar.fit(photos, out=tmp_path / "a", settings={**SMALL, "method.kept": 0.4, "method.momentum": 0.9})
    assert not (tmp_path / "a").exists()


def test_record_tells_losses_chance_and_diagnostics(result):
    lines = [json.loads(line) for line in (result.out / "metrics.jsonl").read_text().splitlines()]
    last = lines[-1]
    assert {line["stage"] for line in lines} == {"decoder", "train"}
    assert last["step"] == 6 and last["epoch"] == 3.0
    assert last["total"] == pytest.approx(last["base"] + last["rebuild"] + last["pair"])
    assert last["chance/base"] == pytest.approx(math.log(1 + 32))
    assert last["chance/pair"] == pytest.approx(0.5 * math.log(15))
    assert 0 < last["perturbed/LowVariance"] <= 1 and 0 < last["perturbed/GradCam"] < 1
    assert 0 < last["noise_ratio"] < 10 and 0 < last["psnr"] < 60 and 0 < last["feature_std"] < 1
    assert last["images_per_s"] > 0 and last["lr/encoder"] == pytest.approx(0.03 * 0.25)


def test_tensorboard_holds_the_same_numbers(result):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = event_accumulator.EventAccumulator(str(result.out / "tensorboard"))
    events.Reload()
    last = json.loads((result.out / "metrics.jsonl").read_text().splitlines()[-1])
    assert events.Scalars("train/total")[-1].value == pytest.approx(last["total"], rel=1e-5)


def test_encoder_starts_where_the_weights_file_says(result, photos, tmp_path):
    """Training with a rate of zero gives back the weights it was given."""
    settings = {**ALONE, "encoder.weights": str(result.out / "encoder.safetensors"), "optim.lr": 0.0}
    again = wingbar.fit(photos, out=tmp_path / "b", recipe="moco", settings=settings)
    assert_close(dict(again.encoder.named_parameters()), dict(result.encoder.named_parameters()), rtol=0, atol=0)


def test_frozen_batchnorm_keeps_its_statistics(result, photos, tmp_path):
    settings = {**SMALL, "encoder.weights": str(result.out / "encoder.safetensors"), "encoder.batchnorm": "frozen"}
    again = wingbar.fit(photos, out=tmp_path / "c", settings=settings)
    before, after = dict(result.encoder.named_buffers()), dict(again.encoder.named_buffers())
    running = [name for name in before if "running" in name]
    assert running and all(torch.equal(before[name], after[name]) for name in running)
    assert any(
        not torch.equal(a, b) for a, b in zip(result.encoder.parameters(), again.encoder.parameters(), strict=True)
    )


def test_accumulation_in_one_part_or_two_sees_the_same_images(photos, tmp_path):
    one = wingbar.fit(photos, out=tmp_path / "one", recipe="moco", settings=ALONE)
    two = wingbar.fit(
        photos,
        out=tmp_path / "two",
        recipe="moco",
        settings={**ALONE, "run.accumulate": 2},
    )
    assert len(one.method.queue) == len(two.method.queue) == 32
    assert one.method.queue.position == two.method.queue.position


def test_an_existing_run_is_not_touched(result, photos):
    before = (result.out / "checkpoint.pt").read_bytes()
    with pytest.raises(UserError, match="exists"):
        wingbar.fit(photos, out=result.out, settings=SMALL)
    assert (result.out / "checkpoint.pt").read_bytes() == before


def test_resuming_with_other_settings_is_refused(result, photos):
    with pytest.raises(UserError, match=r"pairs\.nu is 0\.1, .* it was 0\.5"):
        wingbar.fit(photos, out=result.out, settings={**SMALL, "pairs.nu": 0.1, "run.resume": True})


def test_resuming_with_other_images_is_refused(photos, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    wingbar.fit(folder, out=tmp_path / "run", recipe="moco", settings={**ALONE, "run.epochs": 1})
    shutil.copy(folder / "roll 0" / "0.png", folder / "another.png")
    with pytest.raises(UserError, match="not what this run began with"):
        wingbar.resume(tmp_path / "run")


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
def test_a_run_knows_what_was_in_its_images(cache, photos, tmp_path):
    """Two images are overwritten under their names, in the size they had; new times alone mean nothing."""
    folder, out = tmp_path / "photos", tmp_path / "run"
    shutil.copytree(photos, folder)
    settings = {**ALONE, "run.epochs": 1, "data.cache": cache}
    wingbar.fit(folder, out=out, recipe="moco", settings=settings)
    listed = {name: content for content, _, name in (line.partition(" ") for line in lines_of(out / "images.txt"))}
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.png")}
    hashes = {name: hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() for name, path in files.items()}
    assert listed == hashes, "the damaged file was not trained on"
    for path in files.values():
        os.utime(path, (1e9, 1e9))
    wingbar.resume(out)
    for name in ("roll 1/4.png", "roll 2/8.png"):
        picture = Image.open(files[name]).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        picture.save(files[name], compress_level=0)
        os.utime(files[name], (1e9, 1e9))
    with pytest.raises(UserError, match=r"^2 of 20 images, first roll 1/4\.png, have other contents .*; put .* back"):
        wingbar.resume(out)
    (out / "images.txt").unlink()
    with pytest.raises(UserError, match=r"^the images have other contents"):
        wingbar.resume(out)
    environment = json.loads((out / "environment.json").read_text())
    del environment["contents"]  # as an earlier version would have left it
    (out / "environment.json").write_text(json.dumps(environment))
    wingbar.resume(out)


def lines_of(path):
    return path.read_text().splitlines()


@pytest.mark.parametrize(
    "method, lr, rate", [("moco", None, 0.03), ("simsiam", None, 0.05 / 32), ("simsiam", 0.1, 0.1 / 32)]
)
def test_each_method_has_its_own_learning_rate(method, lr, rate, photos, tmp_path):
    """SimSiam's is per 256 images, and a batch has 8."""
    own = {"method.name": method, "method.dim": 16, "optim.lr": lr, "run.epochs": 1, "run.log_every": 1}
    settings = fitting(SMALL, changed(recipe_named("default"), {"method.name": method})) | own
    out = wingbar.fit(photos, out=tmp_path / "run", recipe="intent", settings=settings).out
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert next(line["lr/encoder"] for line in lines if line["stage"] == "train") == pytest.approx(rate)


# --- what is said while it runs --------------------------------------------------------------------------------------


@pytest.fixture
def hour_long(monkeypatch):
    """A clock that moves by an hour with every step, and nothing else."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock, reach = Clock(), progress.Bar.reach

    def step(bar, done):
        clock.now += 3600.0
        reach(bar, done)

    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress.Bar, "reach", step)


def test_a_cpu_says_so_at_once_and_how_long_it_takes_as_soon_as_that_is_known(photos, tmp_path, hour_long, capsys):
    """Two epochs of two steps: after the second step, two hours are left."""
    wingbar.fit(photos, out=tmp_path / "a", recipe="moco", settings={**ALONE, "run.epochs": 2})
    said = capsys.readouterr().err.splitlines()
    first = next(place for place, line in enumerate(said) if line.startswith("train"))
    assert any("training on the CPU with" in line for line in said[:first])
    notes = [place for place, line in enumerate(said) if line.startswith("note: on this CPU")]
    assert len(notes) == 1 and said[notes[0]].startswith("note: on this CPU the whole run ends in about 2:00 h; fewer ")
    assert said[notes[0] - 1].startswith("train  2/4  2:00 h left")


def test_the_time_left_counts_the_stages_to_come(photos, tmp_path, hour_long, capsys):
    """In passes of the encoder per image, training is 14 and a decoder's step 2: 6 steps of the one are 42 of these."""
    settings = {**SMALL, "pairs.decoder.epochs": 2}
    wingbar.fit(photos, out=tmp_path / "a", settings=settings)
    said = capsys.readouterr().err
    assert re.findall(r"decoder  (\d)/4  (.*?) left", said) == [
        *(("2", "about 44:00 h"), ("3", "about 43:00 h"), ("4", "about 42:00 h"))
    ]
    assert "ends in about 44:00 h" in said and "train  2/6  4:00 h left" in said


# --- files that cannot be read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, way_out",
    [({"data.most_broken": 0.04}, r"--data\.most-broken 0\.05"), ({"data.strict": True}, r"drop --data\.strict")],
    ids=["share", "strict"],
)
def test_too_many_unreadable_files_stop_before_training(settings, way_out, photos, tmp_path):
    """One of 21 is 4.8 %. The list lies where the run would have been, and does not stand in its way afterwards."""
    with pytest.raises(UserError, match=rf"1 of 21 files \(4\.8%\) .*damaged\.jpg: .*unreadable\.txt.*{way_out}"):
        wingbar.fit(photos, out=tmp_path / "run", recipe="moco", settings={**ALONE, **settings})
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["unreadable.txt"]
    assert str(photos / "damaged.jpg") in (tmp_path / "run" / "unreadable.txt").read_text()
    wingbar.fit(photos, out=tmp_path / "run", recipe="moco", settings={**ALONE, "run.epochs": 1})
    assert (tmp_path / "run" / "encoder.safetensors").exists()


def test_links_to_nowhere_count_as_unreadable_and_are_said(photos, tmp_path, capsys):
    """Beside the damaged one of 21 files, a link to an image and one to a folder."""
    folder, settings = tmp_path / "photos", {**ALONE, "run.epochs": 1}
    shutil.copytree(photos, folder)
    (folder / "roll 1" / "lost.png").symlink_to("nowhere.png")
    (folder / "roll 4").symlink_to(tmp_path / "unmounted")
    with pytest.raises(UserError, match=r"^3 of 23 files \(13\.0%\) are unreadable"):
        wingbar.fit(folder, out=tmp_path / "run", recipe="moco", settings=settings)
    listed = dict(line.split("\t") for line in lines_of(tmp_path / "run" / "unreadable.txt"))
    assert listed[str(folder / "roll 1" / "lost.png")] == "lost.png: a link to nowhere.png, which does not exist"
    assert listed[str(folder / "roll 4")] == f"roll 4: a link to {tmp_path / 'unmounted'}, which does not exist"
    wingbar.fit(
        folder,
        out=tmp_path / "run",
        recipe="moco",
        settings={**settings, "data.most_broken": 0.2},
    )
    assert "note: 3 of 23 files are unreadable and left out, first damaged.jpg" in capsys.readouterr().err


# --- options of the readers ------------------------------------------------------------------------------------------


def test_a_readers_options_reach_it(photos, tmp_path):
    """Three rolls are three classes of 7, 7 and 6 images; half of them are held out."""
    whole = tmp_path / "photos"
    shutil.copytree(photos, whole, ignore=shutil.ignore_patterns("damaged.jpg"))
    settings = {**ALONE, "data.name": "folder", "data.options": ("test_fraction=0.5", "seed=1"), "run.epochs": 1}
    out = wingbar.fit(whole, out=tmp_path / "run", recipe="moco", settings=settings).out
    assert json.loads((out / "environment.json").read_text())["images"] == 10


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"data.options": ("seed",)}, "key=value"),
        ({"data.options": ("seed=",)}, "key=value"),
        ({"data.options": ("sead=1",)}, "did you mean 'seed'"),
        ({"data.options": ("seed=many",)}, "whole number"),
        ({"data.options": ("test_fraction=half",)}, "takes a number"),
        ({"data.options": ("test_fraction=2",)}, "between 0 and 1"),
        ({"data.download": True}, "cannot be downloaded"),
        ({"data.root": "lookalike", "data.options": ("seed=1",)}, "lookalike has neither"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(settings, said, photos, tmp_path):
    (tmp_path / "a").mkdir()
    shutil.copy(photos / "roll 0" / "0.png", tmp_path / "a")
    with pytest.raises(UserError, match=said):
        wingbar.fit(tmp_path, out=tmp_path.with_name("run"), settings={**SMALL, "data.name": "folder", **settings})
