"""Until there is something to compute, a command needs no torch: its help, its refusals and Ctrl-C come at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import wingbar
from wingbar.config import configfile, recipes, settings

SLOW = ("torch", "torchvision", "timm", "numpy", "matplotlib", "PIL", "safetensors", "jaxtyping")
COMMANDS = (
    *("try", "recipes", "train", "resume", "evaluate", "embed", "search", "classify", "explore", "export"),
    *("show", "report", "reproduce", "submit", "bench", "cache", "data", "doctor", "completion"),
)
STOCK = "embed resnet50 {taken} --encoder.weights random"
ANSWERED = [
    "",
    "--help",
    "recipes",
    *(f"{command} --help" for command in COMMANDS),
    "train simsiam --help",
    *(f"bench {name} --help" for name in ("step", "data", "train", "scale")),
    *(f"data {name} --help" for name in ("check", "pick")),
    "cache clear --help",
]
REFUSED = {  # command line → what its one sentence is about
    "trian": "'trian'",
    "recipes please": "no arguments",
    "train try-sinth": "'try-synth'",
    "train": "run",
    "train --out {free} --data.size 0": "data.size",
    "train --out {free} --data.batch -1": "data.batch",
    "train --out {free} --device gpu": "'gpu'",
    "train --out {free} --encoder.weights {free}.pth": "does not exist",
    "train --out {free} --data.batch 6 --run.accumulate 4": "run.accumulate",
    "train --out {free} --data.batch 6 --run.devices 4": "run.devices",
    "train --out {free} --device cuda:1 --run.devices 2": "run.devices",
    "train moco --out {free} --method.splits 2 --run.devices 2": "--encoder.batchnorm local",
    "train --out {free} --method.queue 7": "method.queue",
    "train --out {free} --method.hidden 7": "SimSiam",
    "train moco --out {free} --pairs.nu 7": "--wrappers pairs",
    "train --out {free} --synth.no-on": "wrappers",
    "train --out {free} --data.views moko": "multicrop",
    "train --out {free} --run.epochs 3 --optim.warmup 3": "optim.warmup",
    "train --out {free} --pairs.bank 7": "pairs.bank",
    "train vit-lora --out {free} --encoder.last 2": "encoder.lora",
    "train simsiam-synth --out {free} --pairs.readings.second teacher": "teacher",
    "train --out {free} --pairs.readings.pair-loss native": "simsiam",
    "train --out {free} --data.options level=family": "data.options",
    "train --out {free} --wrappers ccrop dilo": "ccrop and dilo",
    "train dilo --out {free} --dilo.saliency {free}": "neither mbd",
    "train contrastive-crop --out {free} --ccrop.beta 0": "ccrop.beta",
    "train --out {free} --data.root {free}": "is missing",
    "train --out {run}": "exists",
    "train --out {run} --run.resume --data.batch 6": "data.batch",
    "train --out {file}": "is a file",
    "train --out {taken} --run.overwrite": "no wingbar run",
    "resume {free}": "no wingbar run",
    "resume {taken}": "no wingbar run",
    "evaluate {free}": "no run and no weights file",
    "evaluate {free}.pth": "does not exist",
    "evaluate {run}": "no encoder yet",
    "evaluate {taken}": "no wingbar run",
    "evaluate resnet50 --encoder.weights random": "--data.root",
    "evaluate resnet50 --encoder.weights random --data.root {taken} --data.size 0": "data.size",
    "evaluate resnet50 --protocols knm": "'knn'",
    "evaluate resnet50 --encoder.weights random --data.root {taken} --batch 0": "batch",
    "evaluate resnet50 --encoder.weights random --data.root {taken} --run.devices 0": "run.devices",
    "bench step --memory --distributed": "two tables",
    "bench step --systems --memory": "two tables",
    "bench scale --recipes moco": "got 1 recipes and 3 rates",
    "bench step --systems --recipes bjol": "'byol'",
    "evaluate resnet50 --encoder.weights random --data.root {taken} --out {file}": "is a file",
    "evaluate resnet50 --encoder.weights random --data.root {free} --data.name folder": "is missing",
    "embed {free} {taken} -o {free}.npz": "no run and no weights file",
    "embed {run} {taken} -o {free}.npz": "no encoder yet",
    "embed resnet50 {free} --encoder.weights random -o {free}.npz": "does not exist",
    f"{STOCK} -o {{free}}.txt": ".npz or .map",
    f"{STOCK} -o {{file}}/birds.npz": "is a file",
    f"{STOCK} -o {{free}}.npz --batch 0": "batch",
    f"{STOCK} -o {{free}}.npz --neighbours 0": "neighbours",
    f"{STOCK} -o {{free}}.npz --data.size 7": "data.size",
    f"{STOCK} -o {{free}}.npz --device gpu": "'gpu'",
    "search {free}.npz --row 1": "wingbar embed",
    "search {file} --row 1": ".npz or .map",
    "search {free}.npz": "give one of them",
    "search {free}.npz --row 1 --path birds.png": "give one of them",
    "search {free}.npz {free}.png": "the query",
    "search {free}.npz --row 1 --k 0": "at least 1",
    "search {free}.npz --row 1 --threshold 2": "threshold",
    "search {free}.npz --duplicates 0": "duplicates",
    "search {free}.npz --row 1 --sheet {free}.pdf": ".png",
    "classify {free} {taken}": "no labelled image",
    "classify resnet50 {free}.csv --encoder.weights random": "does not exist",
    "classify resnet50 {file} --encoder.weights random": "it needs path and label",
    "classify resnet50 {taken} --next 5": "--predict",
    "classify resnet50 {taken} --next -1": "next is -1",
    "classify resnet50 {taken} --refuse 1": "refuse is 1",
    "classify resnet50 {taken} --predict {free}": "does not exist",
    "classify resnet50 {taken} --vectors {free}.npz": "wingbar embed",
    "classify resnet50 {taken} --data.size 7": "data.size",
    "explore {free}": "no run and no weights file",
    "explore {run}": "no encoder yet",
    "explore resnet50 --encoder.weights random": "no images of its own",
    "explore resnet50 {free} --encoder.weights random": "does not exist",
    "explore resnet50 {taken} --k 0": "k is 0",
    "explore resnet50 {taken} --port 65536": "port is 65536",
    "explore resnet50 {taken} --host 0.0.0.0": "WINGBAR_PASSWORD",
    "show": "nothing to show",
    "show pairs": "nothing to show",
    "show {free}": "neither a run nor a picture",
    "report {taken}": "no wingbar run",
    "export {free} --to onnx": "no run and no weights file",
    "export {run} --to timm": "no encoder yet",
    "export {taken} --to timm": "no wingbar run",
    "export resnet50 --to program": "--encoder.weights",
    "export resnet50 --encoder.weights random --to program --data.size 0": "data.size",
    "export resnet50 --encoder.weights random --to program --out {free}": ".pt2",
    "export resnet50 --encoder.weights random --to program --out {file}/a.pt2": "is a file",
    "export resnet50 --encoder.weights random --to timm --out {taken}": "notes.txt",
    "export resnet50 --encoder.weights random --to timm --repo a/b": "--to hub",
    "export resnet50 --encoder.weights random --to hub": "no run",
    "reproduce mian --data lookalike": "'main'",
    "reproduce main": "--data",
    "reproduce main --data lookalike --rows Hours": "row of main",
    "reproduce main --data lookalike --set run.epohcs=1": "'run.epochs'",
    "reproduce main --data lookalike --device gpu": "'gpu'",
    "submit": "what is to be submitted",
    "submit --time 8:00:00": "what is to be submitted",
    "submit trian --out {free}": "'trian'",
    "submit --dry-run {free}.py": "does not exist",
    "submit --nodes 0 train --out {free}": "nodes is 0",
    "submit --time soon train --out {free}": "'soon'",
    "submit --partition a b train --out {free}": "'b'",
    "submit --dry-run --tasks 2 train --out {free}": "--tasks",
    "submit --dry-run train": "--out",
    "submit --dry-run train moko --out {free}": "'moco'",
    "submit --dry-run train --out {run}": "exists",
    "submit --dry-run train --out {free} --data.size 0": "data.size",
    "submit --dry-run --gpus 3 train --out {free}": "run.devices 3",
    "submit --dry-run --gpus 2 train --out {free} --run.devices 4": "run.devices is 4",
    "submit --dry-run --gpus 0 --nodes 3 train --out {free} --run.devices 4": "3 nodes",
    "submit --dry-run --nodes 2 reproduce main --data lookalike": "one machine",
    "submit --dry-run reproduce mian --data lookalike": "'main'",
    "submit --dry-run reproduce main --data lookalike --dry-run": "behind submit",
    "bench stpe": "'step'",
    "bench step --cases our": "'ours'",
    "bench train --recipes moko": "'moco'",
    "bench step --out {file}": "is a file",
    "data chek": "check",
    "data check {free}": "does not exist",
    "data check {taken} --near 17": "near",
    "data check {taken} --encoder resnet50": "--encoder.weights",
    "data pick {taken} {free} --encoder {run}": "does not exist",
    "data pick {taken} {taken} --encoder resnet50": "--encoder.weights",
    "data pick {taken} {taken} --encoder {run} --k 0": "k is 0",
    "data pick {taken} {taken} --encoder {run} --stop 2": "stop is 2",
    "data pick {taken} {taken} --encoder {run} --out {file}": "is a file",
    "data pick {taken} {taken} --encoder {run} --out {taken}/list.csv": "among the images",
    "try --run.epochs 0 --out {free}": "run.epochs",
    "doctor photos": "wingbar data check",
    "completion": "bash and zsh",
    "try --out {taken}": "--out",
}
MISTYPED = [
    *("train --epohcs 1", "train --data.size large", "evaluate", "resume", "try --image 3", "cache lst"),
    *("embed", "search", "classify", "explore", "export", "export resnet50 --to tflite", "data pick here there"),
]
# Runs every command line it is given, one after the other, and says what came of each.
RUNNER = """
import contextlib, io, json, sys
from wingbar.cli import main

def outcome(arguments):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as refused:
        try:
            main(arguments)
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        except ImportError as error:
            code = str(error)
    return code, said.getvalue(), refused.getvalue()

print(json.dumps([outcome(arguments) for arguments in json.load(sys.stdin)]))
"""


def environment(folder: Path) -> dict[str, str]:
    """Ours, with the modules of a folder before all others."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path(wingbar.__file__).parents[1])])}


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, Path]:
    """A folder with a run that has no encoder yet, one with something else, a file, and a name that is free."""
    home = tmp_path_factory.mktemp("places")
    for name in ("run", "taken"):
        (home / name).mkdir()
    (home / "taken" / "notes.txt").touch()
    (home / "run" / "environment.json").write_text(json.dumps({"wingbar": "0", "recipe": "default"}))
    (home / "run" / "config.json").write_text(configfile.to_json(settings.Config()))
    (home / "file").touch()
    return {name: home / name for name in ("run", "taken", "file", "free")}


def without(folder: Path, *names: str) -> dict[str, str]:
    """An environment in which these modules cannot be imported."""
    for name in names:
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} was imported')")
    return environment(folder)


@pytest.fixture(scope="module")
def outcomes(places, tmp_path_factory) -> dict[str, tuple[int, str, str]]:
    """Exit code, stdout and stderr of every command line, in a process that cannot import anything slow."""
    lines = [*ANSWERED, *REFUSED, *MISTYPED]
    arguments = [[word.format(**places) for word in line.split()] for line in lines]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(arguments),
        env=without(tmp_path_factory.mktemp("slow"), *SLOW),
        cwd=places["free"].parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(lines, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("line", ANSWERED)
def test_help_and_lists_need_no_torch(line, outcomes):
    code, said, refused = outcomes[line]
    assert (code, refused) == (0, "") and said


def test_every_recipe_is_listed_without_torch(outcomes):
    assert all(name in outcomes["recipes"][1] for name in recipes.RECIPES)


@pytest.mark.parametrize("line", REFUSED)
def test_mistakes_in_the_command_line_need_no_torch(line, outcomes):
    code, said, refused = outcomes[line]
    assert (code, said) == (2, "") and REFUSED[line] in refused


@pytest.mark.parametrize("line", MISTYPED)
def test_options_that_cannot_be_read_need_no_torch(line, outcomes):
    code, said, refused = outcomes[line]
    assert (code, said) == (2, "") and refused


def test_refusals_leave_nothing_behind(outcomes, places):
    assert {path.name for path in places["free"].parent.rglob("*")} == {
        *("run", "taken", "file", "notes.txt", "environment.json", "config.json")
    }


def heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell starts what runs in the background deaf to it


@pytest.mark.parametrize("start", [["-m", "wingbar"], [str(Path(sys.executable).with_name("wingbar"))]])
@pytest.mark.parametrize("library", ["tyro", "torch"])
def test_ctrl_c_while_a_library_is_imported_is_no_traceback(library, start, tmp_path):
    (tmp_path / f"{library}.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"
    )
    done = subprocess.run(
        [sys.executable, *start, "train", "--out", str(tmp_path / "run")],
        env=environment(tmp_path),
        preexec_fn=heed_ctrl_c,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stderr.removeprefix("starting …\n")  # on a machine that is slow just now
    assert (done.returncode, done.stdout, said) == (128 + signal.SIGINT, "", "wingbar: stopped\n")


def test_what_computes_waits_for_nothing_slow_but_torch(tmp_path):
    """The libraries of models take longer than torch, whose compiler they import; a wrong folder is told before."""
    modules = (
        *("train.runs", "evaluate.sitting", "evaluate.doctor.check", "show.drawing", "show.report.writing"),
        *(
            "use.embedding",
            "use.searching",
            "use.loaded",
            "use.pick",
            "use.classify.making",
            "use.explore.explorer",
            "use.explore.server",
            "use.export.writing",
        ),
        *("reproduce.story", "reproduce.session", "reproduce.bench.step"),
    )
    imports = ", ".join(f"wingbar.{name}" for name in modules)
    script = f"import sys, {imports}; print('torch._dynamo' in sys.modules)"
    env = without(tmp_path, "timm", "torchvision", "matplotlib", "scipy")
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


# --- names that are imported when they are asked for -----------------------------------------------------------------


@pytest.mark.parametrize("package", ["wingbar", "wingbar.evaluate"])
def test_every_name_is_found_in_its_home(package):
    module = import_module(package)
    assert set(module.__all__) <= set(dir(module)) and "TYPE_CHECKING" not in module.__all__
    for name, home in module.homes.items():
        assert getattr(module, name) is getattr(import_module(home), name)


def test_the_function_train_is_not_lost_to_the_part_train():
    script = "import wingbar.train.record, wingbar; assert callable(wingbar.train), wingbar.train"
    subprocess.run([sys.executable, "-c", script], env=environment(Path()), check=True)


def test_unknown_names_are_refused_as_python_does():
    with pytest.raises(AttributeError, match="module 'wingbar' has no attribute 'trian'"):
        _ = wingbar.trian
