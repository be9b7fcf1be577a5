"""The command: a mistake costs one sentence and nothing else; a run leaves what it promises."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import typing
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open

from forked import Command
from wingbar import RECIPES, load_encoder
from wingbar.cli import main
from wingbar.config import sections as config
from wingbar.config.entry import TINY
from wingbar.config.limits import FOREVER, LIMITS
from wingbar.errors import UserError
from wingbar.methods import METHODS
from wingbar.models.decoder import DECODERS

SMALL = [
    *("--data.images", "24", "--data.batch", "8", "--data.size", "32", "--data.stored", "32"),
    *("--encoder.name", "timm/test_resnet", "--pairs.decoder.epochs", "1", "--run.epochs", "1", "--device", "cpu"),
    "--run.no-tensorboard",
]


def train(out: Path, *more: str, recipe: str = "try-synth") -> list[str]:
    return ["train", recipe, *SMALL, "--out", str(out), *more]


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Everything below the folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


@pytest.fixture
def refused(tmp_path, capsys):
    """Call the command; it must say one sentence, exit with 2 and leave tmp_path as it was. Gives back the sentence."""

    def call(arguments: list[str], *, lines: int = 1) -> str:
        before = snapshot(tmp_path)
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        said = capsys.readouterr()
        assert stop.value.code == 2
        sentence = said.err.splitlines()[-1]
        assert said.out == "" and said.err.count("\n") == lines and sentence.startswith("wingbar: ")
        assert snapshot(tmp_path) == before
        return sentence

    return call


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a small run."""
    out = tmp_path_factory.mktemp("runs") / "a"
    main(train(out))
    return out


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    """The same, to be spoilt."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (40, 30), (50 * number, 0, 0)).save(folder / f"{number}.png")
    return folder


# --- what works ------------------------------------------------------------------------------------------------------


def test_help_lists_the_commands(capsys):
    for arguments in (["--help"], ["-h"], []):
        main(arguments)
        said = capsys.readouterr().out
        assert all(f"wingbar {command}" in said for command in ("try", "recipes", "train", "resume", "data"))


def test_recipes_are_listed_with_what_they_are(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    main(["recipes"])
    said = capsys.readouterr().out
    for name, recipe in RECIPES.items():
        assert name in said and recipe.__doc__.splitlines()[0] in said


def test_recipes_begin_with_where_to_start(capsys):
    """Three lines; the recipes and settings that they name are there."""
    main(["recipes"])
    first, second, third, empty = capsys.readouterr().out.splitlines()[:4]
    assert first.startswith("Start here") and "GPU" in first and "Without a GPU" in second and not empty
    for line in (first, second):
        recipe, *rest = re.search(r"wingbar train (.+?)(,|$)", line)[1].split()
        assert recipe in RECIPES and rest == ["--data.root", "photos/", "--out", "runs/a"]
    assert "wingbar train --help" in third


@pytest.mark.parametrize("command", ["train", "resume", "try", "recipes", "bench", "cache", "data"])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"wingbar {command}" in capsys.readouterr().out


def settings(*methods: str) -> dict[str, str]:
    """Every setting with the text below it, read from the source."""
    parts = {"data": config.DataSettings, "encoder": config.EncoderSettings, "optim": config.Optim, "run": config.Run}
    parts |= {("pairs" if name == "pairs" else "method"): METHODS[name].settings for name in methods}
    return {name: text for prefix, kind in parts.items() for name, text in texts(prefix, kind).items()}


def texts(prefix: str, kind: type) -> dict[str, str]:
    """Of one dataclass and of those in it."""
    (found,) = ast.parse(inspect.getsource(kind)).body
    own, kinds = {}, typing.get_type_hints(kind)
    for line, below in pairwise([*found.body, None]):
        if isinstance(line, ast.AnnAssign) and dataclasses.is_dataclass(kinds[line.target.id]):
            own |= texts(f"{prefix}.{line.target.id}", kinds[line.target.id])
        elif isinstance(line, ast.AnnAssign):
            assert isinstance(below, ast.Expr), f"{prefix}.{line.target.id} has no text"
            own[f"{prefix}.{line.target.id}"] = below.value.value
    return own


@pytest.mark.parametrize(
    "words, methods, absent",
    [
        ([], ("moco", "pairs"), "--method.hidden"),
        (["simsiam"], ("simsiam",), "--pairs.nu"),
        (["moco", "--method.name", "simsiam", "--wrappers", "pairs"], ("simsiam", "pairs"), "--method.queue"),
    ],
    ids=["no recipe", "simsiam", "chosen by words"],
)
def test_train_help_explains_the_settings_of_the_methods_in_use_and_no_others(
    words, methods, absent, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")  # wider, tyro sets the options in two columns
    with pytest.raises(SystemExit) as stop:
        main(["train", *words, "--help"])
    assert stop.value.code == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    explained = settings(*methods)
    assert len(explained) > 50 and absent not in said
    for name, text in explained.items():
        word = name.removeprefix("run.") if name in ("run.out", "run.device", "run.seed") else name
        assert f" --{word.replace('_', '-')} " in said.replace(",", " "), name
        assert text in said, name


def test_help_and_errors_know_the_same_limits():
    """Those that nobody could guess: a number of threads is not negative, a share lies between 0 and 1."""
    guessed = {(low, high) for low in (0, 1, TINY) for high in (1, 2**63 - 1, FOREVER)} | {(-FOREVER, FOREVER)}
    told = settings("moco", "pairs")
    limited = {name: limits for name, limits in LIMITS.items() if limits not in guessed}
    assert {"data.size", "data.stored", "run.probe_images"} <= limited.keys()
    for name, limits in limited.items():
        numbers = {float(word) for word in re.findall(r"\d+(?:\.\d+)?", told[name])}
        assert set(limits) - {FOREVER} <= numbers, name


@pytest.mark.parametrize("decoder, unit", [("light", 16), ("tiny", 16), ("mirror", 32)])
def test_help_says_which_sizes_a_decoder_makes(decoder, unit):
    """Its error names the neighbours of a wrong size; they are one unit apart, and the help says which."""
    with pytest.raises(UserError, match=rf"multiples of {unit}; use 64 or {64 + unit}$"):
        DECODERS[decoder](8, 65)
    assert f"{'of' if decoder == 'mirror' else 'a multiple of'} {unit}" in settings()["data.size"]


def test_a_run_leaves_an_encoder_a_record_and_its_settings(finished):
    assert {path.name for path in finished.iterdir()} == {
        *("config.json", "environment.json", "metrics.jsonl", "checkpoint.pt", "encoder.safetensors", "embedder")
    }
    kept = json.loads((finished / "config.json").read_text())
    assert kept["data"]["batch"] == 8 and kept["encoder"]["name"] == "timm/test_resnet"
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["step"]) for line in lines][-1] == ("train", 3)
    encoder = load_encoder(finished / "encoder.safetensors")
    assert encoder.name == "timm/test_resnet"
    assert encoder(torch.zeros(1, 3, 32, 32)).vector.shape == (1, encoder.dim)


def test_a_folder_of_photos_is_enough(photos, tmp_path, capsys):
    (photos / "broken.jpg").write_text("no photo")
    main(train(tmp_path / "run", "--data.root", str(photos), "--data.batch", "2", "--data.most-broken", "0.25"))
    assert str(tmp_path / "run" / "encoder.safetensors") in capsys.readouterr().out
    assert (tmp_path / "run" / "encoder.safetensors").is_file()
    assert "broken.jpg" in (tmp_path / "run" / "unreadable.txt").read_text()


def contents(path: Path) -> tuple[dict[str, str], dict[str, list[float]]]:
    """Metadata and tensors of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        return file.metadata(), {key: file.get_tensor(key).tolist() for key in file.keys()}  # noqa: SIM118


def test_a_run_can_be_overwritten(finished, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "old.txt").touch()
    main(train(out, "--run.overwrite", "--seed", "1"))
    assert not (out / "old.txt").exists() and "Done." in capsys.readouterr().out
    assert json.loads((out / "config.json").read_text())["run"]["seed"] == 1
    assert contents(out / "encoder.safetensors")[1] != contents(finished / "encoder.safetensors")[1]


def test_resuming_a_finished_run_changes_nothing(finished, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    main(["resume", str(out)])
    assert "Done." in capsys.readouterr().out
    assert contents(out / "encoder.safetensors") == contents(finished / "encoder.safetensors")
    for name in ("metrics.jsonl", "environment.json"):
        assert (out / name).read_bytes() == (finished / name).read_bytes()


# --- what is refused: data and weights -------------------------------------------------------------------------------


def test_missing_folder(refused, tmp_path):
    assert "nowhere is missing" in refused(train(tmp_path / "run", "--data.root", str(tmp_path / "nowhere")))


def test_empty_folder(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no image in" in refused(train(tmp_path / "run", "--data.root", str(tmp_path / "empty")))


def test_folder_of_broken_images(refused, tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(8):
        (tmp_path / "photos" / f"{number}.jpg").write_text("no photo")
    decoded_first = 3  # lines: how far hashing and decoding went, then the sentence
    assert "readable" in refused(train(tmp_path / "run", "--data.root", str(tmp_path / "photos")), lines=decoded_first)


def test_missing_weights(refused, tmp_path):
    assert "does not exist" in refused(train(tmp_path / "run", "--encoder.weights", str(tmp_path / "none.pth")))


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
def test_unreadable_weights(ending, refused, tmp_path):
    path = tmp_path / f"weights.{ending}"
    path.write_bytes(b"\0" * 100)
    assert str(path) in refused(train(tmp_path / "run", "--encoder.weights", str(path)))


class Trap:
    """Unpickled by somebody careless, it makes a folder."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_weights_with_code_in_them(refused, tmp_path):
    torch.save({"state_dict": Trap(tmp_path / "it-ran")}, tmp_path / "trap.pth")
    assert "code" in refused(train(tmp_path / "run", "--encoder.weights", str(tmp_path / "trap.pth")))


def test_unknown_encoder(refused, tmp_path):
    assert "timm/test_resnet" in refused(train(tmp_path / "run", "--encoder.name", "timm/test_resnt"))


# --- what is refused: numbers that do not go together ----------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, named",
    [
        (["--data.batch", "25"], "data.batch"),
        (["--pairs.bank", "7"], "pairs.bank"),
        (["--method.queue", "7"], "method.queue"),
        (["--run.accumulate", "3"], "run.accumulate"),
        (["--run.accumulate", "8"], "one image in each"),
        (["--data.size", "100"], "96 or 112"),
        (["--device", "gpu"], "cuda"),
        (["--pairs.readings.pair-loss", "native"], "simsiam"),
        (["--method.name", "simsiam", "--pairs.readings.pair-loss", "native", "--pairs.centred"], "pairs.centred"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_that_do_not_go_together(settings, named, refused, tmp_path):
    assert named in refused(train(tmp_path / "run", *settings))


def test_batch_larger_than_a_folder(photos, refused, tmp_path):
    assert "data.batch" in refused(train(tmp_path / "run", "--data.root", str(photos)))


@pytest.mark.parametrize(
    "setting, value",
    [
        ("data.batch", "0"),
        ("data.batch", "-1"),
        ("data.batch", "1"),
        ("optim.lr", "inf"),
        ("optim.lr", "nan"),
        ("pairs.eps-g", "inf"),
        ("data.view-count", "1"),
        ("method.splits", "0"),
        ("method.splits", "3"),
        ("method.momentum", "2"),
        ("run.accumulate", "0"),
        ("run.accumulate", "-1"),
        ("run.epochs", "-1"),
        ("run.log-every", "0"),
        ("run.seed", "-1"),
    ],
)
def test_numbers_that_make_no_sense(setting, value, refused, tmp_path):
    refused(train(tmp_path / "run", f"--{setting}", value))


def test_torchrun_is_refused_where_one_process_does_the_work(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert "torchrun started 2 processes, but wingbar report works in one" in refused(["report", str(tmp_path)])


def test_as_many_ranks_as_torchrun_started_must_share_a_batch(refused, tmp_path, monkeypatch):
    """All of them find this; the first one says it."""
    monkeypatch.setenv("WORLD_SIZE", "5")
    monkeypatch.setenv("RANK", "0")
    assert "cannot be shared by run.devices 5 alike" in refused(train(tmp_path / "run"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_absent_cuda(refused, tmp_path):
    assert "0 CUDA devices" in refused(train(tmp_path / "run", "--device", "cuda"))


# --- what is refused: the folder of the run --------------------------------------------------------------------------


def test_missing_out(refused):
    assert "--out" in refused(["train", "try-synth", *SMALL])


def test_existing_run(refused, finished, tmp_path):
    before = snapshot(finished)
    sentence = refused(train(finished))
    assert "--run.resume" in sentence and "--run.overwrite" in sentence
    assert snapshot(finished) == before


def test_resuming_with_other_settings(refused, finished):
    before = snapshot(finished)
    assert "data.batch" in refused(train(finished, "--run.resume", "--data.batch", "6"))
    assert snapshot(finished) == before


def test_resuming_and_overwriting_at_once(refused, finished, tmp_path):
    """One of the two would throw the run away."""
    shutil.copytree(finished, tmp_path / "run")
    refused(train(tmp_path / "run", "--run.resume", "--run.overwrite"))


@pytest.mark.parametrize("flags", [[], ["--run.overwrite"], ["--run.resume"]], ids=["", "overwrite", "resume"])
def test_folder_that_is_no_run(flags, refused, photos):
    assert "exists" in refused(train(photos, *flags))


@pytest.mark.parametrize("flag", ["--run.overwrite", "--run.resume"])
@pytest.mark.parametrize("text", ['{"model_type": "bert"}', "not json"])
def test_folder_with_somebody_elses_config(text, flag, refused, photos):
    """Many programs write a config.json; that makes no folder ours to delete."""
    (photos / "config.json").write_text(text)
    refused(train(photos, flag))


def test_overwriting_never_deletes_the_photos(refused, finished, photos):
    """The photos may lie in the very folder that is to be overwritten."""
    shutil.copy(finished / "config.json", photos)
    refused(train(photos, "--run.overwrite", "--data.root", str(photos), "--data.batch", "2"))


def test_out_that_is_or_lies_below_a_file(refused, tmp_path):
    (tmp_path / "file").touch()
    assert "is a file" in refused(train(tmp_path / "file"))
    refused(train(tmp_path / "file" / "run"))


def test_resume_of_a_folder_without_a_run(refused, photos):
    assert str(photos) in refused(["resume", str(photos)])


@pytest.mark.parametrize("text", ["", "not json", '{"model_type": "bert"}'])
def test_resume_of_a_folder_with_somebody_elses_config(text, refused, photos):
    (photos / "config.json").write_text(text)
    refused(["resume", str(photos)])


@pytest.mark.parametrize(
    "content", [b"", b"no checkpoint", pickle.dumps([1]), pickle.dumps(Path("code"))], ids=range(4)
)
def test_resume_from_a_file_that_is_no_checkpoint(content, copied, capsys):
    (copied / "checkpoint.pt").write_bytes(content)
    with pytest.raises(SystemExit) as stop:
        main(["resume", str(copied)])
    said = capsys.readouterr().err.splitlines()[-1]
    assert stop.value.code == 2
    assert said.startswith(f"wingbar: {copied / 'checkpoint.pt'} cannot be read as a checkpoint") and len(said) < 300
    assert "weights_only" not in said


def test_resume_of_a_missing_folder(refused, tmp_path):
    assert "nowhere" in refused(["resume", str(tmp_path / "nowhere")])


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_try_in_a_place_that_is_taken(kind, refused, photos):
    assert "--out" in refused(["try", "--out", str(photos if kind == "folder" else photos / "0.png")])


# --- what is refused: by the disk ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "{run}"],
        ["report", "{run}"],
        ["show", "neighbours", "{run}"],
        ["data", "check", "{photos}", "--out", "{run}/checked"],
    ],
    ids=lambda command: command[0],
)
def test_no_room_is_one_sentence_that_names_the_file(command, copied, photos, no_room, capsys):
    before = snapshot(copied)
    with no_room(300), pytest.raises(SystemExit) as stop:
        main([word.format(run=copied, photos=photos) for word in command])
    assert stop.value.code == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence.startswith(f"wingbar: {copied}") and "could not be written: File too large" in sentence
    assert sentence.endswith(". Then the same command does the rest")
    assert {name: text for name, text in snapshot(copied).items() if name in before} == before
    assert not list(copied.rglob(".*partial"))


# --- names that would steer the terminal -----------------------------------------------------------------------------


def test_a_run_may_be_called_anything(finished, tmp_path, capsys):
    """Tables and sentences show the name as it is, not what rich would make of it."""
    out = tmp_path / "rr[/b]r"
    shutil.copytree(finished, out)
    main(["resume", str(out)])
    main(["evaluate", str(out), "--protocols", "knn"])
    said = capsys.readouterr()
    assert "rr[/b]r" in said.out and "rr[/b]r" in said.err


@pytest.mark.parametrize(
    "name, shown", [(b"wipe\x1b[2J.png", r"wipe\x1b[2J.png"), (b"no\xfftext.png", r"no\udcfftext.png")]
)
def test_control_characters_in_a_name_are_shown_and_not_obeyed(name, shown, photos, tmp_path, capsys):
    (photos / os.fsdecode(name)).write_text("no image")
    with pytest.raises(SystemExit):
        main(train(tmp_path / "run", "--data.root", str(photos), "--data.batch", "2", "--data.strict"))
    said = capsys.readouterr().err
    assert shown in said and "\x1b" not in said
    said.encode("utf-8")


# --- what is refused: names ------------------------------------------------------------------------------------------


def test_unknown_command(refused):
    sentence = refused(["trian"])
    assert "'trian'" in sentence and "train" in sentence


def test_unknown_recipe(refused, tmp_path):
    assert "'try-synth'" in refused(train(tmp_path / "run", recipe="try-sinth"))
    assert "wingbar recipes" in refused(train(tmp_path / "run", recipe="zzzzzz"))


# --- as another process ----------------------------------------------------------------------------------------------


def test_installed_script():
    script = Path(sys.executable).with_name("wingbar")
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "wingbar train" in done.stdout


def test_module_says_one_sentence_and_runs_no_code_from_a_file(tmp_path, tmp_path_factory):
    """A plain pickle: torch would like to warn about it, too."""
    (tmp_path / "trap.pth").write_bytes(pickle.dumps({"state_dict": Trap(tmp_path / "it-ran")}))
    arguments = train(tmp_path / "run", "--encoder.weights", str(tmp_path / "trap.pth"))
    done = Command(arguments, tmp_path_factory.mktemp("said"))
    assert done.ended() == 2 and done.said.read_text() == ""
    *before, sentence = done.complained.read_text().splitlines()
    assert sentence.startswith("wingbar: ") and all(line.endswith(" …") for line in before)  # what takes long is said
    assert [path.name for path in tmp_path.iterdir()] == ["trap.pth"]
