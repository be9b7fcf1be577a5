"""What a head from few labels is worth: beside scikit-learn's, its calibration, strangers, and choosing what to label.

    wingbar embed resnet50 CUB_200_2011 --encoder.weights FILE --dtype fp32 -o cub.npz
    python experiments/classify.py cub.npz --lists CUB_200_2011

Heads learn from training images of the official split and are judged on its test images, by which no head is chosen
(how vectors are rooted and what `--next` covers was: docs/decisions.md). Every number is a mean over draws of the
labelled images with Student's 95 % interval; what is compared was given the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import tyro
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Generator, Tensor

from wingbar.metrics.fewlabels import FewLabels, calibration_error, fit_few, frame_of, nearness, refusal, rooted
from wingbar.metrics.intervals import over_repeats
from wingbar.metrics.review import doubtful, uncertainty, worth_a_label
from wingbar.terminal import say
from wingbar.use.formats import open_embeddings


@dataclass(frozen=True)
class Asked:
    """Measure heads from few labels on CUB."""

    file: Annotated[Path, tyro.conf.Positional]
    """What `wingbar embed` wrote of all images."""
    lists: Path
    """Folder with images.txt and train_test_split.txt."""
    shots: int = 5
    """Labelled images of each class."""
    draws: int = 5
    """Of the labelled images."""
    rounds: int = 4
    """Of choosing one image per class on average, after two of each were drawn."""
    classes: int = 200
    """The first so many."""
    wrong: float = 0.05
    """Share of labels that are exchanged, to be found."""


class Birds(NamedTuple):
    """Vectors, classes, and which are for training."""

    vectors: Tensor
    target: Tensor
    train: Tensor

    def rows(self, *, train: bool) -> Tensor:
        """Row numbers of a split."""
        return torch.nonzero(self.train == train).flatten()


def read(asked: Asked) -> Birds:
    """The embeddings file beside the official lists."""
    names = dict(line.split()[::-1] for line in (asked.lists / "images.txt").read_text().splitlines())
    split = dict(line.split() for line in (asked.lists / "train_test_split.txt").read_text().splitlines())
    file = open_embeddings(asked.file)
    keys = ["/".join(Path(row.path).parts[-2:]) for row in file.rows]
    target = torch.tensor([int(key[:3]) - 1 for key in keys])
    train = torch.tensor([split[names[key]] == "1" for key in keys])
    few = target < asked.classes
    return Birds(torch.tensor(file.vectors[:])[few].float(), target[few], train[few])


def drawn(target: Tensor, rows: Tensor, shots: int, seed: int) -> Tensor:
    """So many rows of every class, at random."""
    mixed = rows[torch.randperm(len(rows), generator=Generator().manual_seed(seed))]
    return torch.cat([mixed[target[mixed] == label][:shots] for label in target.unique()])


def probabilities(found: FewLabels, vectors: Tensor) -> Tensor:
    """Of each class."""
    return found.head(rooted(vectors.double())).softmax(dim=1)


def judged(probability: Tensor, target: Tensor) -> dict[str, float]:
    """Accuracy and calibration error."""
    sure, said = probability.max(dim=1)
    correct = said == target
    return {"accuracy": correct.double().mean().item(), "calibration error": calibration_error(sure, correct)}


def oracle(vectors: Tensor, target: Tensor, new: Tensor) -> Tensor:
    """scikit-learn's probabilities, with its own defaults."""
    model = LogisticRegression(max_iter=3000).fit(vectors.numpy(), target.numpy())
    return torch.from_numpy(model.predict_proba(new.numpy()))


def heads(birds: Birds, asked: Asked, seed: int) -> dict[str, float]:
    """One draw: ours and scikit-learn's on test images; what cross-validation had said."""
    rows, test = drawn(birds.target, birds.rows(train=True), asked.shots, seed), birds.rows(train=False)
    learnt, target, new, truth = birds.vectors[rows], birds.target[rows], birds.vectors[test], birds.target[test]
    found = fit_few(learnt, target)
    frame = frame_of(learnt)
    every = {
        "ours": probabilities(found, new),
        "scikit-learn, vectors as they are": oracle(learnt, target, new),
        "scikit-learn, our rooted vectors": oracle(frame(learnt), target, frame(new)),
    }
    scores = {f"{who}: {what}": value for who, own in every.items() for what, value in judged(own, truth).items()}
    scores["ours, cross-validated: accuracy"] = found.accuracy.value
    scores["ours, cross-validated: calibration error"] = found.error
    scores["accuracy inside the cross-validated interval"] = float(
        found.accuracy.low <= scores["ours: accuracy"] <= found.accuracy.high
    )
    return scores


def strangers(birds: Birds, asked: Asked, seed: int) -> dict[str, float]:
    """One draw: half of the classes have labels, images of the others should be none of these."""
    known = torch.randperm(asked.classes, generator=Generator().manual_seed(seed))[: asked.classes // 2].sort().values
    number = torch.full((asked.classes,), -1).scatter(0, known, torch.arange(len(known)))
    train = birds.rows(train=True)
    rows = drawn(birds.target, train[number[birds.target[train]] >= 0], asked.shots, seed)
    found = fit_few(birds.vectors[rows], number[birds.target[rows]])
    test = birds.rows(train=False)
    new, own = birds.vectors[test], number[birds.target[test]] >= 0
    near, logits = nearness(new, found.mean, found.centres), found.head(rooted(new.double()))
    refused = near < refusal(found.near, 0.05)
    return {
        "known refused": refused[own].double().mean().item(),
        "strangers refused": refused[~own].double().mean().item(),
        "AUROC by nearness": roc_auc_score(own, near),
        "AUROC by probability": roc_auc_score(own, logits.softmax(dim=1).amax(dim=1)),
        "AUROC by largest logit": roc_auc_score(own, logits.amax(dim=1)),
    }


def mistakes(birds: Birds, asked: Asked, seed: int) -> dict[str, float]:
    """One draw: some labels are exchanged for others; how many are found, and how many of those named are right."""
    rows, generator = drawn(birds.target, birds.rows(train=True), asked.shots, seed), Generator().manual_seed(seed)
    truth = birds.target[rows]
    changed = torch.randperm(len(rows), generator=generator)[: round(asked.wrong * len(rows))]
    given = truth.clone()
    given[changed] = (
        truth[changed] + torch.randint(1, asked.classes, changed.shape, generator=generator)
    ) % asked.classes
    named = [row for row, _ in doubtful(fit_few(birds.vectors[rows], given).probability, given)]
    first = set(named[: len(changed)]) & set(changed.tolist())
    return {
        "labels named": len(named) / len(rows),
        "wrong ones among the named": len(set(named) & set(changed.tolist())) / len(changed),
        "wrong ones among the first as many": len(first) / len(changed),
    }


# --- choosing --------------------------------------------------------------------------------------------------------

Choose = Callable[[FewLabels, Tensor, Tensor, int, int], Sequence[int]]


def at_random(found: FewLabels, pool: Tensor, had: Tensor, count: int, seed: int) -> list[int]:
    """Any images."""
    return torch.randperm(len(pool), generator=Generator().manual_seed(seed))[:count].tolist()


def by_margin(found: FewLabels, pool: Tensor, had: Tensor, count: int, seed: int) -> list[int]:
    """The most uncertain, alike or not."""
    return uncertainty(probabilities(found, pool)).argsort(descending=True)[:count].tolist()


def by_worth(found: FewLabels, pool: Tensor, had: Tensor, count: int, seed: int) -> list[int]:
    """As `wingbar classify --next` does."""
    seen, known = (rooted(some.double()) - found.mean for some in (pool, had))
    return worth_a_label(seen, uncertainty(probabilities(found, pool)), known, count=count)


def curve(birds: Birds, asked: Asked, seed: int, choose: Choose) -> list[float]:
    """Test accuracy with two images per class, then after every round."""
    train, test = birds.rows(train=True), birds.rows(train=False)
    rows, scores = drawn(birds.target, train, 2, seed), list[float]()
    for number in range(asked.rounds + 1):
        found = fit_few(birds.vectors[rows], birds.target[rows])
        said = probabilities(found, birds.vectors[test]).argmax(dim=1)
        scores.append((said == birds.target[test]).double().mean().item())
        pool = train[~torch.isin(train, rows)]
        chosen = choose(found, birds.vectors[pool], birds.vectors[rows], asked.classes, 1000 * seed + number)
        rows = torch.cat([rows, pool[torch.tensor(chosen)]])
    return scores


def tell(title: str, draws: Sequence[Mapping[str, float]]) -> None:
    """A line for each number."""
    say(f"{title}, {len(draws)} draws, %:")
    for name in draws[0]:
        say(f"  {name}: {over_repeats([draw[name] for draw in draws])}")


def main() -> None:
    """All of it."""
    asked = tyro.cli(Asked)
    birds, seeds = read(asked), range(asked.draws)
    say(f"{len(birds.target):,} images of {asked.classes} classes, {asked.shots} labelled of each")
    tell("Heads", [heads(birds, asked, seed) for seed in seeds])
    tell("None of these, half of the classes unknown", [strangers(birds, asked, seed) for seed in seeds])
    tell(f"Labels of which {100 * asked.wrong:g} % are wrong", [mistakes(birds, asked, seed) for seed in seeds])
    ways = {"random": at_random, "margin": by_margin, "worth": by_worth}
    found = {name: [curve(birds, asked, seed, choose) for seed in seeds] for name, choose in ways.items()}
    for name, curves in found.items():
        tell(f"Choosing by {name}", [{f"{2 + k} per class": own[k] for k in range(len(own))} for own in curves])
        if name != "random":
            gains = [[a - b for a, b in zip(*two, strict=True)] for two in zip(curves, found["random"], strict=True)]
            tell("  its gain", [{f"{2 + k} per class": own[k] for k in range(len(own))} for own in gains])


if __name__ == "__main__":
    main()
