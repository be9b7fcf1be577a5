"""A repository for a hub: a model card beside weights that others can open; sent only when somebody says so."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from wingbar.errors import UserError
from wingbar.evaluate.candidates import Candidate
from wingbar.files import write_text
from wingbar.models.embedder import Embedder, save_folder
from wingbar.use.classify.head import HEAD
from wingbar.use.export.card import make_card
from wingbar.use.export.deployed import Compared
from wingbar.use.export.timmfolder import Unheld, write_timm


def fill_hub(
    embedder: Embedder, candidate: Candidate, folder: Path, *, licence: str, repo: str, classifier: Path | None = None
) -> Compared | None:
    """The card, and the weights in timm's layout; in wingbar's own where timm's cannot hold them, or the head that lies
    in the classifier's folder."""
    try:
        checked: Compared | None = write_timm(embedder, folder, licence=licence, classifies=classifier is not None)
    except Unheld:
        for path in folder.iterdir():
            path.unlink()
        save_folder(embedder, folder, recipe=candidate.recipe)
        if classifier is not None:
            for name in HEAD:
                shutil.copyfile(classifier / name, folder / name)
        checked = None
    card = make_card(
        embedder, candidate, licence=licence, repo=repo or "OWNER/NAME", timm=checked is not None, classifier=classifier
    )
    write_text(folder / "README.md", card)
    return checked


def send(folder: Path, names: Sequence[str], repo: str, *, public: bool) -> str:
    """Send these files of a folder to a repository, which is made if it is not there; its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        sent: Any = api.upload_folder(
            repo_id=repo, folder_path=folder, allow_patterns=list(names), commit_message="Exported by wingbar"
        )
    except Exception as error:  # no network, no token, no right, no such owner: each has a class of its own
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{folder} could not be sent to {repo}: {why}; it is whole, log in with `hf auth login` and send it again"
        ) from error
    return str(getattr(sent, "commit_url", repo))


# --- the licence of what training began with -------------------------------------------------------------------------


def licence_of(name: str, weights: str) -> str:
    """Of a model's weights: as their library or their file says it; empty where nobody does."""
    path = Path(weights).expanduser()
    if path.suffix == ".safetensors":
        with suppress(SafetensorError, OSError), safe_open(path, framework="pt") as file:
            said = file.metadata() or {}
            return str(said.get("licence") or said.get("license") or "")
    with suppress(ValueError, KeyError, RuntimeError):
        return _of_library(name, weights)
    return ""


def _of_library(name: str, weights: str) -> str:
    import timm
    from torchvision import models

    library, _, bare = name.rpartition("/")
    if library != "timm" and bare in models.list_models():
        return str(models.get_weight(f"{models.get_model_weights(bare).__name__}.{weights}").meta.get("license", ""))
    known = timm.get_pretrained_cfg(f"{bare}.{weights}", allow_unregistered=False)
    return str(getattr(known, "license", None) or "")
