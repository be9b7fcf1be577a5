"""One word per thing on the whole command line, and what a run wrote runs again."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from safetensors.torch import load_file

from wingbar.cli import main
from wingbar.config.configfile import from_json, to_json
from wingbar.config.settings import Config, named

SMALL = {
    "data": {"images": 16, "batch": 8, "size": 32, "stored": 32},
    "encoder": {"name": "timm/test_resnet", "weights": "random"},
    "method": {"queue": 16},
    "wrappers": [],
    "run": {"epochs": 1, "device": "cpu", "seed": 7, "tensorboard": False},
}
COMMANDS = (
    *(["try"], ["train"], ["evaluate"], ["embed"], ["show"], ["report"], ["reproduce"]),
    *(["bench", "step"], ["bench", "data"], ["bench", "train"], ["data", "check"]),
)
# One line per thing: the word that every command has for it, and what is never one, as it was or as one might guess.
ONE_WORD = {
    "out": {"run.out", "output", "folder"},
    "device": {"run.device"},
    "seed": {"run.seed", "seeds"},
    "run.epochs": {"epochs"},
    "data.root": {"root", "path"},
    "data.name": {"name"},
    "data.size": {"size"},
    "data.workers": {"workers"},
    "data.classes": {"classes"},
    "encoder.weights": {"weights"},
    "map.points": {"points"},
    "map.how": {"how"},
    "paper.epochs": {"probe-epochs"},
}


@pytest.fixture
def options(capsys, monkeypatch):
    """The words that a command's help lists."""
    monkeypatch.setenv("COLUMNS", "80")

    def listed(command: list[str]) -> set[str]:
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        return set(re.findall(r"[│ ](--?[a-z][\w.-]*)", capsys.readouterr().out))

    return listed


@pytest.fixture
def refused(capsys):
    """The one sentence with which a command refuses."""

    def call(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        said = capsys.readouterr()
        assert stop.value.code == 2 and said.out == "" and said.err.count("\n") == 1
        return said.err.removeprefix("wingbar: ").rstrip()

    return call


# --- one word per thing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_everything_has_one_word(command, options):
    found = options(command)
    assert {"-o", "--out", "--device"} <= found
    for word, others in ONE_WORD.items():
        assert not {f"--{other}" for other in others} & found, word


def test_a_setting_of_a_run_is_called_alike_in_every_command(options):
    """What ends like a setting of a run and means it, is that setting: `size` is data.size, and nothing else is."""
    short = {"run.out": "out", "run.device": "device", "run.seed": "seed"}
    names = {short.get(name, name).replace("_", "-") for name in named(Config())}
    another_thing = {  # of an image that is drawn, of a feature that is kept, of a probe or a picture: not of training
        *("batch", "precision", "images", "encoder", "paper.epochs", "finetune.epochs", "attention.batch"),
        *("paper.batch", "finetune.batch", "paper.lr", "finetune.lr", "paper.compile", "knn.temperature"),
        *("spread.classes", "warmup"),
    }
    endings = {name.rpartition(".")[2] for name in names}
    for command in COMMANDS:
        found = {word.lstrip("-").replace(".no-", ".") for word in options(command)}
        alike = {word for word in found if word.rpartition(".")[2] in endings}
        assert alike - names - another_thing == set(), command


# --- old words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed, answer",
    [
        ("train --run.out runs/a", "--run.out is called --out now"),
        ("train moco --run.out=runs/a", "--run.out is called --out now"),
        ("train --run.device cpu --run.seed 1", "--run.device is called --device now; --run.seed is called --seed now"),
        ("evaluate runs/a --name cub200", "--name is called --data.name now"),
        ("evaluate resnet50 --weights random", "--weights is called --encoder.weights now"),
        ("show runs/a --encoder=resnet50", "--encoder is called --encoder.name now"),
        ("report runs/a --points 9", "--points is called --map.points now"),
        ("reproduce main --seeds 0 1", "--seeds is called --seed now"),
        ("reproduce main --probe_epochs=2", "--probe-epochs is called --paper.epochs now"),
        ("try --epochs x", "--epochs is called --run.epochs now"),
        ("bench step --size x", "--size is called --data.size now"),
        ("bench data --workers x", "--workers is called --processes now"),
        ("data check photos --name flat", "--name is called --data.name now"),
    ],
)
def test_an_old_word_is_answered_with_the_new_one(typed, answer, refused):
    assert refused(*typed.split()) == answer


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_answer_is_a_word_of_its_command(command, options):
    from wingbar.config import words

    answers, found = words._OLD[" ".join(command)], options(command)
    assert {f"--{new}" for new in answers.values()} <= found
    assert not {f"--{old}" for old in answers} & found


# --- what a run wrote ------------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path) -> Path:
    """The config.json of a small run, which said where."""
    settings = {**SMALL, "run": {**SMALL["run"], "out": str(tmp_path / "a")}}
    (tmp_path / "small.json").write_text(json.dumps(settings))
    main(["train", "--config", str(tmp_path / "small.json")])
    return tmp_path / "a" / "config.json"


def test_a_config_that_a_run_wrote_runs_again(written, tmp_path, refused):
    assert "a exists" in refused("train", f"--config={written}")
    main(["train", "--config", str(written), "--out", str(tmp_path / "b"), "--optim.lr", "0.5"])
    first, second = (from_json((tmp_path / name / "config.json").read_text()) for name in "ab")
    assert first.run.seed == 7 and first.data.batch == 8
    expected = json.loads(to_json(first)) | {"optim": {**asdict(first.optim), "lr": 0.5}}
    expected["run"]["out"] = str(tmp_path / "b")
    assert json.loads(to_json(second)) == expected


def test_a_config_again_keeps_its_recipe_and_gives_the_same_encoder(tmp_path):
    small = ["--data.images=16", "--data.batch=8", "--data.size=32", "--data.stored=32", "--method.queue=16"]
    main(["train", "try-moco", *small, "-o", str(tmp_path / "a"), "--device", "cpu", "--run.epochs", "1"])
    main(["train", "-o", str(tmp_path / "b"), "--config", str(tmp_path / "a" / "config.json")])
    environments = [json.loads((tmp_path / name / "environment.json").read_text()) for name in "ab"]
    assert environments[0]["recipe"] == environments[1]["recipe"] == "try-moco"
    first, second = (load_file(tmp_path / name / "encoder.safetensors") for name in "ab")
    assert all(first[key].equal(second[key]) for key in first.keys() | second.keys())


def test_a_recipe_and_a_config_are_too_much(tmp_path, refused):
    (tmp_path / "c.json").write_text("{}")
    sentence = refused("train", "moco", "--config", str(tmp_path / "c.json"))
    assert "moco" in sentence and "c.json" in sentence and "one of them" in sentence


WRONG = {
    "nothing": ("", "no JSON"),
    "text": ("batch: 8", "no JSON"),
    "a number": ("3", "int"),
    "a list": ("[1, 2]", "list"),
    "null": ("null", "NoneType"),
    "a part that is a number": ('{"run": 3}', "run is a int"),
    "a word for a number": ('{"optim": {"lr": "fast"}}', "optim.lr cannot be 'fast'"),
    "an unknown setting": ('{"optim": {"rate": 1}}', "optim.rate"),
    "an unknown part": ('{"model": {}}', "model"),
    "bytes": (b"\xff\xfe\x00", "no JSON"),
}


@pytest.mark.parametrize("text, named", WRONG.values(), ids=WRONG)
def test_a_file_that_is_no_config_is_named(text, named, tmp_path, refused):
    path = tmp_path / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    sentence = refused("train", "--config", str(path), "--out", str(tmp_path / "run"))
    assert sentence.startswith(f"{path} is no config of wingbar: ") and named in sentence


def test_a_config_that_is_not_there_is_named(tmp_path, refused):
    for path, what in ((tmp_path / "none.json", "missing"), (tmp_path, "a folder")):
        sentence = refused("train", "--config", str(path))
        assert sentence.startswith(f"{path} is {what}") and "config.json" in sentence


@pytest.mark.parametrize("text, named", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("command", ["resume", "evaluate", "show", "report"])
def test_a_run_whose_config_is_none_is_named(command, text, named, tmp_path, refused):
    """Every command that reads a run says which file is wrong."""
    (tmp_path / "environment.json").write_text('{"wingbar": "0", "recipe": "moco"}')
    (tmp_path / "encoder.safetensors").touch()
    path = tmp_path / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    sentence = refused(command, str(tmp_path))
    assert sentence.startswith(f"{path} is no config of wingbar: ") and named in sentence
