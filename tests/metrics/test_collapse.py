"""The measures of collapse against NumPy, closed forms and simulation, and the sentences made of them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from wingbar.config.configfile import to_json
from wingbar.config.settings import Config, changed
from wingbar.data.batches import Batches
from wingbar.data.store import Store
from wingbar.errors import UserError
from wingbar.methods.state import Ring
from wingbar.metrics.collapse import Geometry, effective_rank, geometry, learnt, self_negatives, spread
from wingbar.metrics.diagnosis import Record, diagnose, facts, read_record, signs_of
from wingbar.metrics.verdicts import Signs, judge


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def line_of_points(n: int = 64, dim: int = 32) -> Tensor:
    """±u with a little noise: what SimSiam without predictor ends in."""
    return drawn(n, 1).sign() * drawn(dim, seed=1) + 1e-4 * drawn(n, dim, seed=2)


def narrow_cone(n: int = 64, dim: int = 32, *, width: float) -> Tensor:
    return torch.ones(n, dim) + width * drawn(n, dim)


# --- measures --------------------------------------------------------------------------------------------------------


def twin(vectors: np.ndarray) -> Geometry:
    """The same by NumPy, pair by pair and dimension by dimension."""
    unit = np.stack([row / np.sqrt((row**2).sum()) for row in vectors])
    n, k = unit.shape
    stds = [math.sqrt(((column - column.mean()) ** 2).mean()) for column in unit.T]
    sigma = np.linalg.svd(vectors, compute_uv=False)
    p = sigma / sigma.sum() + 1e-7
    potentials = [np.exp(-2 * ((unit[i] - unit[j]) ** 2).sum()) for i in range(n) for j in range(n) if i != j]
    dead = sum(std * math.sqrt(k) < 0.01 for std in stds) / k
    rank = math.exp(-(p * np.log(p)).sum())
    return Geometry(np.mean(stds), 1 / math.sqrt(k), rank, min(n, k), dead, math.log(np.mean(potentials)))


@pytest.mark.parametrize("shape", [(20, 6), (6, 20)], ids=str)
def test_geometry_equals_numpy(shape):
    vectors = drawn(*shape) + 0.5
    vectors[:, 0] = 0  # one dead dimension
    assert geometry(vectors) == pytest.approx(twin(vectors.double().numpy()), rel=1e-4)


def test_two_opposite_points_spread_perfectly_and_have_rank_one():
    """Why the std alone does not see this collapse. Half of the other points are at distance 2, half at 0."""
    u = drawn(16).sign()  # entries of equal size, where the mean std reaches its bound
    found = geometry(torch.cat([u.expand(50, -1), -u.expand(50, -1)]))
    assert found.relative_std == pytest.approx(1, abs=1e-5)
    assert found.rank == pytest.approx(1, abs=1e-3)
    assert found.uniformity == pytest.approx(math.log((49 + 50 * math.exp(-8)) / 99), abs=1e-5)


@pytest.mark.parametrize("vectors", [torch.ones(9, 5), torch.zeros(9, 5)], ids=["ones", "zeros"])
def test_constant_vectors_are_dead(vectors):
    found = geometry(vectors)
    assert found.std == pytest.approx(0, abs=1e-6) and found.dead == 1 and found.rank == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_no_vectors_exceed_the_healthy_std(seed):
    scales = drawn(1, 12, seed=seed + 100).exp()
    found = geometry(drawn(40, 12, seed=seed) * scales)
    assert 0 < found.std <= found.healthy_std == pytest.approx(12**-0.5)
    assert spread(drawn(40, 12, seed=seed)).square().mean() <= 1 + 1e-5


def test_rank_does_not_know_scale_or_rotation():
    vectors, rotation = drawn(30, 8).double(), torch.linalg.qr(drawn(8, 8, seed=3).double()).Q
    assert effective_rank(7 * vectors @ rotation) == pytest.approx(effective_rank(vectors), rel=1e-6)


def test_one_vector_has_no_spread_to_measure():
    with pytest.raises(UserError, match="two or more"):
        geometry(drawn(1, 4))


@pytest.mark.parametrize(
    "queue, images, batch",
    [(6, 12, 3), (12, 12, 3), (25, 12, 3), (25, 11, 3), (7, 11, 3), (40, 10, 10)],
    ids=str,
)
def test_stale_negatives_equal_a_simulated_queue(queue, images, batch):
    """A ring that holds the number of each key's image, filled in the order in which a run shows its images."""
    store = Store(torch.zeros(images, 3, 1, 1, dtype=torch.uint8), torch.ones(images))
    batches = Batches(store, lambda *_: (), lambda image, aspect: image.float(), size=batch)
    ring, copies = Ring(torch.full((queue, 1), -1.0)), []
    per_epoch = images // batch
    for step in range(400 * per_epoch):
        (rows,) = batches._rows(step)
        if step >= 50 * per_epoch:  # the queue is full
            copies += (ring.rows == rows).sum(dim=0).tolist()
        ring.push(rows[:, None].float())
    found = self_negatives(queue=queue, images=images, batch=batch)
    assert found.copies == pytest.approx(np.mean(copies), abs=0.03)
    assert found.met == pytest.approx(np.mean([count > 0 for count in copies]), abs=0.03)


def test_how_far_losses_have_come():
    line = {"base": 6.0, "chance/base": 8.0, "pair": -0.9, "chance/pair": 0.0, "rebuild": 3.0, "chance/other": 1.0}
    assert learnt(line) == {"base": pytest.approx(0.25), "pair": pytest.approx(0.9)}


# --- verdicts --------------------------------------------------------------------------------------------------------


def verdict(features: Tensor, **more) -> tuple[str, str]:
    found = diagnose(features, **more)
    return found.verdict, found.sentences[0]


def test_vectors_that_point_everywhere_are_healthy():
    assert verdict(drawn(64, 32)) == ("healthy", "Nothing points to a collapse.")


def test_one_point_is_a_collapse():
    found, said = verdict(narrow_cone(width=1e-4))
    assert found == "collapsed" and "nearly the same features" in said and "optim.lr" in said


def test_one_line_is_a_collapse_although_it_spreads():
    found, said = verdict(line_of_points())
    assert found == "collapsed" and "effective rank 1.0 of 32" in said


def test_a_narrow_cone_is_a_warning_until_the_views_match():
    """As an untrained encoder has it; where a loss is nearly perfect with it, it is how that came about."""
    features, cone = drawn(64, 32), narrow_cone(width=0.05)
    assert verdict(cone)[0] == "warning" and "untrained" in verdict(cone)[1]
    records = [Record({"base": loss, "chance/base": 0.0}, queue=0, images=64, batch=8) for loss in (-0.1, -0.95)]
    found = [verdict(features, embeddings=cone, record=record)[0] for record in records]
    assert found == ["warning", "collapsed"]


def test_few_directions_are_a_warning():
    features = drawn(64, 2) @ drawn(2, 32, seed=1) + 0.01 * drawn(64, 32, seed=2)
    found, said = verdict(features)
    assert found == "warning" and "dimensional collapse" in said


def test_dead_dimensions_are_counted():
    features = drawn(64, 32)
    features[:, :8] = 0
    found = diagnose(features)
    assert found.verdict == "warning" and "25%" in found.sentences[0] and found.values["dead"] == 0.25


def test_a_queue_longer_than_the_data_is_named():
    long, short = (Record({}, queue=queue, images=5994, batch=128) for queue in (65536, 4096))
    found, said = verdict(drawn(64, 32), record=long)
    assert found == "warning" and all(words in said for words in ("65,536", "5,994", "10.5", "method.queue"))
    found = diagnose(drawn(64, 32), record=short)
    assert found.verdict == "healthy" and found.values["queue/copies"] == pytest.approx(128 * (32 * 33 / 2) / 46 / 5994)


@pytest.mark.parametrize(
    "loss, chance, expected", [(5.5, 5.5, "warning"), (4.5, 5.5, "healthy"), (0.01, 0.0, "warning")]
)
def test_a_loss_at_chance_is_named(loss, chance, expected):
    record = Record({"base": loss, "chance/base": chance}, queue=0, images=64, batch=8)
    found, said = verdict(drawn(64, 32), record=record)
    assert found == expected and ("at chance" in said) == (expected == "warning")


def test_alignment_is_the_mean_squared_distance_of_views():
    first, second = drawn(9, 4), drawn(9, 4, seed=1)
    a, b = (x.numpy() / np.linalg.norm(x.numpy(), axis=1, keepdims=True) for x in (first, second))
    found = diagnose(drawn(9, 6), embeddings=first, positives=second)
    assert found.values["alignment"] == pytest.approx(((a - b) ** 2).sum(axis=1).mean(), rel=1e-5)


def test_the_light_form_says_the_same_as_the_whole():
    features, embeddings = drawn(64, 32), line_of_points()
    line = {**facts(features, embeddings), "base": -0.99, "chance/base": 0.0, "alignment": 0.02}
    whole = diagnose(features, embeddings=embeddings, record=Record(line, queue=0, images=64, batch=8))
    assert judge(signs_of(line)) == whole and whole.verdict == "collapsed"


def test_the_worst_comes_first():
    point = geometry(narrow_cone(width=1e-4))
    found = judge(Signs(geometry(drawn(64, 32)), point, learnt={"pair": 0.0}))
    assert found.verdict == "collapsed" and len(found.sentences) == 2 and "'pair'" in found.sentences[1]


def test_of_many_images_some_are_taken():
    found = diagnose(drawn(10_000, 4))
    assert found.verdict == "healthy" and found.values["rank"] == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize(
    "features, more, said",
    [
        (drawn(8, 4), {"embeddings": drawn(7, 4)}, "8 features and 7 embeddings"),
        (torch.full((8, 4), torch.nan), {}, "NaN"),
    ],
    ids=["count", "nan"],
)
def test_vectors_that_make_no_sense_are_refused(features, more, said):
    with pytest.raises(UserError, match=said):
        diagnose(features, **more)


# --- a run's record --------------------------------------------------------------------------------------------------


def test_the_record_of_a_run(tmp_path):
    (tmp_path / "config.json").write_text(to_json(changed(Config(), {"data.batch": 16, "method.queue": 320})))
    (tmp_path / "environment.json").write_text(json.dumps({"images": 99}))
    lines = [{"stage": "decoder", "step": 9}, {"stage": "train", "step": 1}, {"stage": "train", "step": 2}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_record(tmp_path) == Record(lines[-1], queue=320, images=99, batch=16)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(lines[0]) + "\n")
    with pytest.raises(UserError, match="not begun"):
        read_record(tmp_path)


def test_a_folder_without_a_record_is_refused(tmp_path):
    with pytest.raises(UserError, match="no record"):
        read_record(tmp_path)


def test_an_encoder_that_training_spoilt_is_told_to_learn_more_slowly():
    alike, apart = 1 + 0.05 * drawn(64, 32), drawn(64, 32)
    untrained, spoilt = diagnose(alike), diagnose(alike, begun=apart)
    assert (untrained.verdict, spoilt.verdict) == ("warning", "collapsed")
    assert "raise optim.lr" in untrained.sentences[0] and "lower optim.lr" in spoilt.sentences[0]
    assert diagnose(alike, begun=alike).sentences == untrained.sentences  # it was so before


def test_an_encoder_that_was_nearly_as_narrow_before_is_only_warned():
    """Spreads of 0.40 and 0.29 of the healthy one: on either side of the limit, and not far from each other."""
    before, after = 2.29 + drawn(512, 32), 3.3 + drawn(512, 32)
    assert geometry(before).relative_std == pytest.approx(0.40, abs=0.01)
    assert geometry(after).relative_std == pytest.approx(0.29, abs=0.01)
    found = diagnose(after, begun=before)
    assert found.verdict == "warning" and "destroys what the encoder knew" in found.sentences[0]


def test_embeddings_are_not_compared_with_the_features_before_training():
    apart = drawn(64, 32)
    found = diagnose(apart, embeddings=1 + 0.05 * drawn(64, 16), begun=apart)
    assert found.verdict == "warning" and "The embeddings" in found.sentences[0] and "untrained" in found.sentences[0]
