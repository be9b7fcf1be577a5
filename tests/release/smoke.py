"""What is released, tried in an empty virtual environment: `python tests/release/smoke.py dist/`.

Both files hold all of the package, the wheel installs alone, and commands work without the checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

SMALL = (
    *("--data.images", "16", "--data.batch", "8", "--data.size", "32", "--data.stored", "32", "--method.queue", "16"),
    *("--run.epochs", "1", "--device", "cpu", "-o", "run"),
)
COMMANDS = (
    ("wingbar", "--help"),
    ("wingbar", "doctor"),
    ("wingbar", "recipes"),
    ("wingbar", "train", "try-moco", *SMALL),
    ("wingbar", "resume", "run"),
    ("wingbar", "evaluate", "run", "--protocols", "knn", "--device", "cpu", "--quiet"),
    ("wingbar", "report", "run", "--out", "report.html", "--device", "cpu", "--quiet"),
    ("python", "-c", "import wingbar; print(wingbar.load('run').maker.size, wingbar.__file__)"),
)


def main(folder: Path) -> None:
    """Check what was built, then use it."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_contents(wheel, sdist)
    with tempfile.TemporaryDirectory() as home:
        place = Path(home)
        venv.create(place / "venv", with_pip=True)
        binaries = place / "venv" / "bin"
        quiet = ("--quiet", "--no-compile", "--disable-pip-version-check")
        subprocess.run([binaries / "python", "-m", "pip", "install", *quiet, wheel.absolute()], check=True)
        for command in COMMANDS:
            print("$", " ".join(command), flush=True)
            print(" ", tried(binaries, place, command), flush=True)
    print("The release can be used.")


def check_contents(wheel: Path, sdist: Path) -> None:
    """Every file of the package is in both, and nothing that was made while testing in either."""
    root = Path(__file__).parents[2]
    ours = {
        path.relative_to(root / "src").as_posix() for path in (root / "src" / "wingbar").rglob("*") if path.is_file()
    }
    ours = {name for name in ours if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as archive:
        wheeled = {name for name in archive.namelist() if name.startswith("wingbar/")}
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert wheeled == ours, wheeled ^ ours
    assert {f"src/{name}" for name in ours} <= packed
    assert {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "SECURITY.md", "pyproject.toml"} <= packed
    assert not [name for name in packed if "__pycache__" in name or name.startswith(("runs/", ".venv", "site/"))]
    for path in (wheel, sdist):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


def tried(binaries: Path, place: Path, command: tuple[str, ...]) -> str:
    """The last line that a command says, without anything of the checkout in sight."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env = bare | {"WINGBAR_CACHE": str(place / "cache")}
    words = [str(binaries / command[0]), *command[1:]]
    done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip().splitlines()[-1].replace(str(place), "…")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
