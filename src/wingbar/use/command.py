"""`wingbar embed` and `wingbar search`: an encoder in use."""

from __future__ import annotations

from collections.abc import Sequence

from wingbar.config.words import parse
from wingbar.terminal import aside, say
from wingbar.train.progress import working
from wingbar.use.options import Embed, Search, check_embed, check_search

__all__ = ["embed", "search"]


def embed(arguments: Sequence[str]) -> None:
    """write embeddings of images to a file: wingbar embed runs/a photos/ -o photos.parquet"""
    asked = parse(Embed, "embed", arguments)
    wanted = check_embed(asked)
    with working("starting", quiet=asked.quiet):
        from wingbar.use.embedding import make_embeddings
        from wingbar.use.words import told

    for line in told(make_embeddings(asked, wanted)):
        say(line)


def search(arguments: Sequence[str]) -> None:
    """find similar images in such a file: wingbar search photos.parquet bird.jpg [--duplicates 0.95]"""
    asked = parse(Search, "search", arguments)
    check_search(asked)
    from wingbar.use.searching import find
    from wingbar.use.words import tell

    answers = find(asked)
    tell(answers, as_json=asked.json)
    if asked.sheet is not None and any(answer.hits for answer in answers):
        from wingbar.use.sheets import draw_answers

        draw_answers(answers, asked.sheet)
        aside(f"The images are in {asked.sheet}.")
