"""What a stranger's file could do, and cannot: SECURITY.md lists it, with these tests and some that stand elsewhere."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from wingbar import build_encoder, changed
from wingbar.config.configfile import from_json, to_json
from wingbar.config.recipes import recipe_named
from wingbar.data.own import csv_file, flat
from wingbar.errors import UserError
from wingbar.files import read_lines, refuse_bomb, table_text
from wingbar.models.embedder import Embedder, load_embedder, save_folder
from wingbar.models.weights import load_encoder
from wingbar.reproduce import runner
from wingbar.submit.command import WINGBAR
from wingbar.train import checkpoint
from wingbar.train.command import asked_training
from wingbar.train.runfolder import continued, is_run
from wingbar.use import approximate
from wingbar.use.classify.head import read_head
from wingbar.use.embeddings import Embeddings, IndexAbout, IndexRow, Maker
from wingbar.use.formats import open_embeddings, write_embeddings

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "wingbar"
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\tx", "'=x", "robin")
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def encoder():
    return build_encoder("timm/test_resnet")


@pytest.fixture
def embeddings() -> Embeddings:
    rows = [IndexRow(f"/photos/{number}.png", name, f"{number:064x}") for number, name in enumerate(NAMES)]
    vectors = np.random.default_rng(0).normal(size=(len(rows), 4)).astype(np.float16)
    return Embeddings(IndexAbout(Maker("resnet18"), 4, "fp16"), rows, vectors)


@cache
def nodes() -> list[tuple[str, ast.Call | ast.Import | ast.ImportFrom]]:
    """Every call and import in the package, with its file."""
    files = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in MODULES}
    every = ((file, node) for file, text in files.items() for node in ast.walk(ast.parse(text)))
    return [(file, node) for file, node in every if isinstance(node, ast.Call | ast.Import | ast.ImportFrom)]


def calls(name: str) -> list[tuple[str, ast.Call]]:
    """Those of a function, or of a method whatever it belongs to: `.extract`."""
    found = [(file, node) for file, node in nodes() if isinstance(node, ast.Call) and name.endswith(last(node.func))]
    return [(file, node) for file, node in found if ast.unparse(node.func).endswith(name)]


def last(called: ast.expr) -> str:
    return getattr(called, "attr", getattr(called, "id", "?"))


# --- what the package never does -------------------------------------------------------------------------------------


def test_the_package_neither_runs_nor_unpacks_what_it_reads():
    imported = {
        name.name if isinstance(node, ast.Import) else f"{node.module}.{name.name}"
        for _, node in nodes()
        if not isinstance(node, ast.Call)
        for name in node.names
    }
    parts = {".".join(name.split(".")[: depth + 1]) for name in imported for depth in range(2)}
    assert not parts & {
        "pickle",
        "marshal",
        "shelve",
        "yaml",
        "tarfile",
        "socketserver",
        "dill",
        "joblib",
    }
    servers = {file for file, node in nodes() if isinstance(node, ast.ImportFrom) and node.module == "http.server"}
    assert servers == {"use/explore/server.py"}
    for name in (".extractall", ".extract", ".unpack_archive", "os.system", "os.popen"):
        assert not calls(name), name
    runs = {file for name in ("exec", "subprocess.run") for file, _ in calls(name)}
    # our own modules; git; sbatch, which gets a script
    assert runs == {"lazy.py", "evaluate/record.py", "submit/command.py"}


def test_no_code_of_the_folder_where_somebody_stands_is_run(tmp_path):
    """`python -m` and `python -c` look there first, and it may be the folder of a stranger's images."""
    for name in ("wingbar", "torch", "runpy"):
        (tmp_path / f"{name}.py").write_text("import sys\nsys.exit(77)")
    subprocess.run([*WINGBAR, "recipes"], cwd=tmp_path, check=True, capture_output=True)
    with runner._environment({}):
        subprocess.run([sys.executable, "-c", "import runpy"], cwd=tmp_path, check=True)
    lines = (node for file in MODULES for node in ast.walk(ast.parse(file.read_text("utf-8"))) if says(node))
    started = [ast.unparse(node) for node in lines]
    assert len(started) == 2 and all("'-P', '-m'" in one for one in started), started


def says(node: ast.AST) -> bool:
    """Whether these are the words, or arguments, of a Python that is to be started with a module."""
    words = node.elts if isinstance(node, ast.Tuple) else node.args if isinstance(node, ast.Call) else []
    return any(isinstance(word, ast.Constant) and word.value == "-m" for word in words)


def test_tensors_are_loaded_as_tensors_and_images_as_formats_we_name():
    def said(call: ast.Call) -> dict[str, str]:
        return {str(word.arg): ast.unparse(word.value) for word in call.keywords}

    assert all(said(call)["weights_only"] == "True" for _, call in calls("torch.load"))
    assert all(said(call).get("allow_pickle", "False") == "False" for _, call in calls("np.load"))
    ours = {"evaluate/doctor/evidence.py", "train/sketch.py", "reproduce/bench/data.py"}  # what they wrote themselves
    assert all("formats" in said(call) for file, call in calls("Image.open") if file not in ours)


def test_lower_bounds_leave_out_versions_with_known_holes():
    """Before: weights_only ran code (torch), ImageCms overflowed (Pillow), schemas held pickles (pyarrow)."""
    bounds = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    for name, least in {"torch": (2, 6), "pillow": (10, 3), "pyarrow": (14, 0, 1)}.items():
        assert tuple(map(int, bounds[name].split("."))) >= least, name


# --- tables ----------------------------------------------------------------------------------------------------------


def cells(text: str) -> list[str]:
    return [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]


def test_no_table_has_a_formula_and_all_are_read_back(embeddings, tmp_path):
    write_embeddings(tmp_path / "a.map", embeddings)
    (table,) = (tmp_path / "a.map").glob("rows.*.csv")
    assert not [
        cell for cell in cells(table.read_text(encoding="utf-8")) if cell.startswith(("=", "+", "-", "@", "\t"))
    ]
    assert open_embeddings(tmp_path / "a.map").rows == embeddings.rows
    (tmp_path / "list.csv").write_text(table_text(["path", "similarity"], [(f"{NAMES[2]}.png", -0.5)], decimals=6))
    assert (tmp_path / "list.csv").read_text() == "path,similarity\n'-1.png,-0.500000\n"
    assert csv_file(tmp_path / "list.csv", "train").names == ("-1.png",)


def test_every_table_is_written_by_the_one_that_escapes():
    """reproduce/render.py has columns of signed numbers, and escapes words itself."""
    assert {file for file, _ in calls("csv.writer")} == {"files.py", "reproduce/render.py"}
    assert len([file for file, _ in calls("escaped") if file == "reproduce/render.py"]) >= 2


# --- embeddings files ------------------------------------------------------------------------------------------------


def with_member(path: Path, name: str, content: bytes, *, packed: int = zipfile.ZIP_STORED) -> None:
    """The archive with one member in place of another."""
    with zipfile.ZipFile(path) as archive:
        members = {one: archive.read(one) for one in archive.namelist()}
    with zipfile.ZipFile(path, "w", packed) as archive:
        for one, kept in {**members, name: content}.items():
            archive.writestr(one, kept)


def npy(header: dict[str, object], content: bytes) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + content


@pytest.mark.parametrize("kind", ["|O", "<f8", "<U9"])
def test_vectors_that_are_python_objects_are_never_mapped(kind, embeddings, tmp_path):
    """Their bytes would be addresses, chosen by whoever made the file."""
    path, count = tmp_path / "a.npz", len(embeddings.rows)
    write_embeddings(path, embeddings)
    header = {"descr": kind, "fortran_order": False, "shape": (count, 4)}
    with_member(path, "vector.npy", npy(header, b"A" * 4 * count * 36))
    with pytest.raises(UserError, match="its vectors are"):
        open_embeddings(path)


def test_archives_that_promise_more_than_they_have_are_refused(embeddings, tmp_path):
    path = tmp_path / "a.npz"
    write_embeddings(path, embeddings)
    with_member(path, "path.npy", bytes(5_000_000), packed=zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match="without compression"):
        open_embeddings(path)
    torch.save({"a": torch.zeros(100_000)}, tmp_path / "a.pt")
    with_member(tmp_path / "a.pt", "more", b"", packed=zipfile.ZIP_DEFLATED)
    for read in (checkpoint.read, load_encoder):
        with pytest.raises(UserError, match="without compression"):
            read(tmp_path / "a.pt")


def test_members_that_lie_over_one_another_are_counted_each(tmp_path):
    """The other kind of zip bomb: many names for the same bytes."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("0", bytes(10_000))
        for number in range(1, 5):
            info = zipfile.ZipInfo(str(number))
            info.header_offset, info.file_size, info.compress_size, info.CRC = 0, 10_000, 10_000, 0
            archive.filelist.append(info)
    with pytest.raises(UserError, match="unpacks to 50,000"):
        refuse_bomb(path)


def test_an_embeddings_folder_names_no_file_outside_itself(embeddings, tmp_path):
    write_embeddings(tmp_path / "a.map", embeddings)
    about = json.loads((tmp_path / "a.map" / "about.json").read_text())
    (tmp_path / "secret.csv").write_text("path,class,hash\n")
    (tmp_path / "a.map" / "about.json").write_text(json.dumps(about | {"files": "x/../../secret"}))
    with pytest.raises(UserError, match="files are called"):
        open_embeddings(tmp_path / "a.map")


def test_rows_without_vectors_are_refused(embeddings, tmp_path):
    path, header = tmp_path / "a.npz", {"descr": "<f2", "fortran_order": False}
    write_embeddings(path, embeddings)
    for shape, why in (((3, 4), "rows and dimensions"), ((len(embeddings.rows), 4), "cut off")):
        with_member(path, "vector.npy", npy({**header, "shape": shape}, bytes(3 * 4 * 2)))
        with pytest.raises(UserError, match=why):
            open_embeddings(path)


def test_a_graph_is_taken_from_our_cache_only(embeddings, tmp_path, monkeypatch):
    """hnswlib and faiss believe whatever a graph says."""
    monkeypatch.setenv("WINGBAR_CACHE", str(tmp_path / "cache"))
    place = approximate._kept(tmp_path / "a.npz", embeddings, "hnsw", Path.touch)
    assert place.is_relative_to(tmp_path / "cache") and place.exists()
    changed_rows = Embeddings(embeddings.about, embeddings.rows[:2], embeddings.vectors[:2])
    assert approximate._kept(tmp_path / "a.npz", changed_rows, "hnsw", Path.touch) != place and not place.exists()


# --- JSON that others wrote ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [DEEP, '{"run": {"seed": ' + "9" * 5000 + "}}", "\x00"], ids=["deep", "long", "NUL"])
def test_json_that_would_break_the_parser_is_a_sentence(text, tmp_path):
    with pytest.raises(UserError, match="no JSON"):
        from_json(text)
    for name in ("environment.json", "embedder.json", "head.json", "metrics.jsonl"):
        (tmp_path / name).write_text(text)
    assert not is_run(tmp_path) and not [line for line in read_lines(tmp_path / "metrics.jsonl") if "step" in line]
    for read in (load_embedder, read_head):
        with pytest.raises(UserError):
            read(tmp_path)


WRONG = [
    ("encoder", {"name": "hf-hub:somebody/trap"}),
    ("encoder", {"name": "../trap", "layout": "pytorch"}),
    ("encoder", []),
    ("images", {"size": 10**9}),
    ("images", {"size": "x"}),
    ("feature", 3),
    ("whitening", {"power": "x"}),
    ("format", 99),
]


@pytest.mark.parametrize("part, value", WRONG, ids=[f"{part} {value}" for part, value in WRONG])
def test_an_embedder_says_nothing_that_is_believed_blindly(part, value, encoder, tmp_path):
    save_folder(Embedder(encoder, size=32), tmp_path)
    about = json.loads((tmp_path / "embedder.json").read_text()) | {"feature": {}, part: value}
    (tmp_path / "embedder.json").write_text(json.dumps(about))
    with pytest.raises(UserError):
        load_embedder(tmp_path)


def test_a_safetensors_header_that_lies_is_a_sentence(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(8)}, path)
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = whole[8 : 8 + length].decode()
    for lie in (header.replace("[0,32]", "[0,3200]"), header.replace("[8]", "[8000000000000]"), DEEP[:length]):
        path.write_bytes(len(lie).to_bytes(8, "little") + lie.encode() + whole[8 + length :])
        with pytest.raises(UserError, match="cannot be read as safetensors"):
            load_encoder(path, name="resnet18")
    path.write_bytes((2**60).to_bytes(8, "little") + whole[8:])
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        load_encoder(path, name="resnet18")


def test_a_run_that_somebody_sent_goes_on_in_its_own_folder(tmp_path):
    """Whatever its config says about where to write and what to write over."""
    config = changed(recipe_named("try-moco"), {"run.out": str(tmp_path / "yours"), "run.overwrite": True})
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({"run": {"out": config.run.out}}))
    (tmp_path / "theirs" / "environment.json").write_text('{"wingbar": "0"}')
    assert continued(tmp_path / "theirs")[0].run.out == str(tmp_path / "theirs")


def test_a_config_that_somebody_sent_empties_no_folder(tmp_path, monkeypatch):
    """What becomes of a folder that is there is said on the command line, or nowhere."""
    for word in ("run.overwrite", "run.resume"):
        config = changed(recipe_named("try-moco"), {"run.out": str(tmp_path / "yours"), word: True})
        (tmp_path / "theirs.json").write_text(to_json(config))
        words = [f"--config={tmp_path / 'theirs.json'}"]
        asked, (said, _) = asked_training(words)[0], asked_training([*words, f"--{word}"])
        assert not (asked.run.overwrite or asked.run.resume) and asked.run.out == config.run.out
        assert (said.run.overwrite, said.run.resume) == (word == "run.overwrite", word == "run.resume")


# --- links -----------------------------------------------------------------------------------------------------------


def test_links_out_of_the_data_are_said(tmp_path):
    for name in ("data/in/1.png", "data/in/2.png", "mine/private.png", "mine/album/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    (tmp_path / "data" / "in" / "same.png").symlink_to("1.png")
    assert flat(tmp_path / "data", "train").notes == ()
    (tmp_path / "data" / "in" / "one.png").symlink_to(tmp_path / "mine" / "private.png")
    (tmp_path / "data" / "album").symlink_to(tmp_path / "mine" / "album")
    first = tmp_path / "data" / "album" / "3.png"
    assert flat(tmp_path / "data", "train").notes == (
        f"2 images below {tmp_path / 'data'} lie elsewhere, by links, first {first}",
    )


# --- the list itself -------------------------------------------------------------------------------------------------


def test_every_test_that_the_list_names_exists():
    named = re.findall(r"`(?:([\w/]+\.py)::)?(test_\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 15
    for file, test in named:
        path = ROOT / "tests" / (file or "test_security.py")
        assert re.search(rf"^def {test}\(", path.read_text(encoding="utf-8"), flags=re.MULTILINE), (file, test)
