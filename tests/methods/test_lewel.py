from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from wingbar.config.entry import Context
from wingbar.config.limits import check_together
from wingbar.config.recipes import RECIPES
from wingbar.config.settings import Config, changed
from wingbar.errors import UserError
from wingbar.methods.lewel import (
    LEWEL,
    Alignment,
    Contrast,
    Embedded,
    LEWELSettings,
    alignment_maps,
    build,
    grouped_pooling,
)
from wingbar.models.heads import mlp
from wingbar.models.trunks import build_encoder
from wingbar.types import Batch, Encoded

DIM, HIDDEN, GROUPS, QUEUE = 8, 12, 4, 16


def lewel(**settings) -> LEWEL:
    torch.manual_seed(0)
    chosen = {"dim": DIM, "hidden": HIDDEN, "groups": GROUPS, "queue": QUEUE, "momentum": 0.75, **settings}
    return build(build_encoder("timm/test_resnet"), LEWELSettings(**chosen), Context(4, 8, 64))


def batch(seed: int = 0) -> Batch:
    """Of 64 px, so that there is more than one place to look at."""
    image, *views = torch.randn(3, 8, 3, 64, 64, generator=torch.Generator().manual_seed(seed))
    return Batch(image, tuple(views), torch.arange(8), seed=seed)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- where to look ---------------------------------------------------------------------------------------------------


def slow_maps(pixels: np.ndarray, scale: float) -> np.ndarray:
    """One image: unit length over channels at each place, then a softmax over places for each channel."""
    channels, places = pixels.shape
    unit = np.stack([pixels[:, n] / np.sqrt((pixels[:, n] ** 2).sum()) for n in range(places)], axis=1)
    raised = np.exp(unit / scale)
    return np.stack([raised[c] / raised[c].sum() for c in range(channels)])


def slow_pooling(pixels: np.ndarray, maps: np.ndarray, groups: int) -> np.ndarray:
    """One image: vector i is made of every group's channels, weighed by the i-th map of the same group."""
    wide, many = pixels.shape[0] // groups, maps.shape[0] // groups
    made = np.zeros((many, pixels.shape[0]))
    for i in range(many):
        for group in range(groups):
            for channel in range(group * wide, (group + 1) * wide):
                weights = maps[group * many + i]
                made[i, channel] = sum(w * value for w, value in zip(weights, pixels[channel], strict=True))
    return made


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_maps_and_pooling_equal_their_slow_twins(groups, scale):
    pixels, raw = drawn(3, 12, 5).double(), drawn(3, 8, 5, seed=1).double()
    maps = alignment_maps(raw, scale=scale)
    pooled = grouped_pooling(pixels, maps, groups=groups)
    assert pooled.shape == (3, 8 // groups, 12)
    for image in range(3):
        slow = slow_maps(raw[image].numpy(), scale)
        assert_close(maps[image].numpy(), slow, rtol=1e-9, atol=1e-12)
        assert_close(pooled[image].numpy(), slow_pooling(pixels[image].numpy(), slow, groups), rtol=1e-9, atol=1e-12)


def test_a_map_that_looks_at_one_place_pools_that_place():
    pixels, maps = drawn(1, 4, 3), torch.zeros(1, 2, 3)
    maps[0, 0, 2] = maps[0, 1, 0] = 1  # group 0 looks at place 2, group 1 at place 0
    pooled = grouped_pooling(pixels, maps, groups=2)
    assert_close(pooled[0, 0], torch.cat([pixels[0, :2, 2], pixels[0, 2:, 0]]))


def test_the_heads_equal_one_by_one_convolutions_over_vector_and_pixels():
    """As in the published code: BatchNorm sees the vector and every pixel of every image."""
    wide = 12
    heads = Alignment(*(mlp(wide, HIDDEN, DIM, norm=True, last_bias=False) for _ in range(2)), groups=GROUPS, scale=0.5)
    convolutions = []
    for head in (heads.projector, heads.aligned_projector):
        first, last = nn.Conv1d(wide, HIDDEN, 1, bias=False), nn.Conv1d(HIDDEN, DIM, 1, bias=False)
        first.weight.data, last.weight.data = head[0].weight.data[..., None], head[3].weight.data[..., None]
        convolutions.append(nn.Sequential(first, nn.BatchNorm1d(HIDDEN), nn.ReLU(), last))
    seen = Encoded(drawn(5, wide, 3, 2), drawn(5, wide, seed=1))
    pixels = seen.map.flatten(2)
    projected = convolutions[0](torch.cat([seen.vector[..., None], pixels], dim=2))
    maps = [slow_maps(image.numpy(), 0.5) for image in projected[:, :, 1:].detach().double()]
    pooled = [slow_pooling(p.double().numpy(), m, GROUPS) for p, m in zip(pixels, maps, strict=True)]
    aligned = convolutions[1](torch.tensor(np.stack(pooled)).float().mT)
    assert_close(heads(seen), Embedded(projected[:, :, 0], aligned.mT), rtol=1e-4, atol=1e-5)


# --- on BYOL ---------------------------------------------------------------------------------------------------------


def cosine(one: Tensor, other: Tensor) -> float:
    return (one @ other / one.norm() / other.norm()).item()


def test_the_loss_on_byol_equals_a_loop_over_images_and_aligned_embeddings():
    method = lewel(share=0.3).eval()
    students = [method.heads(method.encoder(view)) for view in batch().views]
    targets = [method.teacher_heads(method.teacher_encoder(view)) for view in batch().views]
    whole = aligned = 0.0
    for one, other in ((0, 1), (1, 0)):
        predicted = method.objective.predictor(students[one].whole)
        whole += sum(2 - 2 * cosine(predicted[b], targets[other].whole[b]) for b in range(8)) / 8
        for i in range(DIM // GROUPS):
            predicted = method.objective.aligned_predictor(students[one].aligned[:, i])
            terms = [2 - 2 * cosine(predicted[b], targets[other].aligned[b, i]) for b in range(8)]
            aligned += sum(terms) / 8 / (DIM // GROUPS)
    got = {name: loss.item() for name, loss in method(batch()).losses.items()}
    assert got == {"base": pytest.approx(0.3 * whole, rel=1e-4), "aligned": pytest.approx(0.7 * aligned, rel=1e-4)}


def test_with_eman_the_teacher_evaluates_with_averaged_statistics():
    method = lewel(eman=True, schedule="constant").train()
    assert method.encoder.training and not any(part.training for part in method.teacher_encoder.module.modules())
    norm = "trunk.bn1.running_mean"
    own = method.teacher_encoder.module.get_buffer(norm).clone()
    twin = copy.deepcopy(method.teacher_encoder.module).eval()
    output = method(batch())
    assert_close(method.teacher_encoder.module.get_buffer(norm), own, rtol=0, atol=0)  # its passes leave no trace
    assert_close(method.teacher_encoder(batch().image).vector, twin(batch().image).vector, rtol=0, atol=0)
    method.after_step([output.carry])
    assert_close(method.teacher_encoder.module.get_buffer(norm), 0.75 * own + 0.25 * method.encoder.get_buffer(norm))
    counts = [value for name, value in method.teacher_encoder.module.named_buffers() if value.dtype == torch.long]
    assert counts and all(count == 2 for count in counts)


def test_what_is_evaluated_is_the_pooled_feature():
    method = lewel().eval()
    assert_close(method.embed(batch().image), method.encoder(batch().image).map.mean(dim=(2, 3)))
    assert_close(method.teach(batch().image), method.project(method.embed(batch().image)), rtol=0, atol=0)


# --- on MoCo ---------------------------------------------------------------------------------------------------------


def test_the_loss_on_moco_equals_a_loop_with_its_own_queue_for_aligned_embeddings():
    method = lewel(base="moco", temperature=0.5).eval()
    students = method.heads(method.encoder(batch().views[0]))
    targets = method.teacher_heads(method.teacher_encoder(batch().views[1]))

    def term(query: Tensor, key: Tensor, queue: Tensor) -> float:
        others = [math.exp(cosine(query, past) / 0.5) for past in queue]
        match = math.exp(cosine(query, key) / 0.5)
        return -math.log(match / (match + sum(others)))

    queues = method.objective.queue.rows, method.objective.aligned_queue.rows
    whole = [term(students.whole[b], targets.whole[b], queues[0]) for b in range(8)]
    places = [(b, i) for b in range(8) for i in range(DIM // GROUPS)]
    aligned = [term(students.aligned[at], targets.aligned[at], queues[1]) for at in places]
    output = method(batch())
    assert output.losses["base"].item() == pytest.approx(np.mean(whole) / 2, rel=1e-4)
    assert output.losses["aligned"].item() == pytest.approx(np.mean(aligned) / 2, rel=1e-4)
    assert output.facts["chance/aligned"] == pytest.approx(math.log(QUEUE + 1) / 2)


def test_of_every_image_one_aligned_key_is_remembered_as_the_seed_decides():
    objective = Contrast(DIM, queue=QUEUE, temperature=0.2)
    target = Embedded(drawn(8, DIM), drawn(8, 5, DIM, seed=1))
    whole, chosen = objective.keep(target, seed=3)
    assert whole is target.whole
    which = [[torch.equal(row, other) for other in own].index(True) for row, own in zip(chosen, target[1], strict=True)]
    assert len(set(which)) > 1
    assert torch.equal(objective.keep(target, seed=3)[1], chosen)
    assert not all(torch.equal(objective.keep(target, seed=seed)[1], chosen) for seed in range(3))
    objective.remember((whole, chosen))
    assert torch.equal(objective.aligned_queue.seen, chosen) and torch.equal(objective.queue.seen, whole)


def test_what_is_approximate_is_called_so():
    titles = {name: RECIPES[name]().title for name in ("lewel", "lewel-moco")}
    assert titles == {"lewel": "LEWEL", "lewel-moco": "LEWEL on MoCo v2 (approximate)"}
    assert not any(isinstance(part, nn.BatchNorm1d) for part in lewel(base="moco").heads.modules())


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_cut_into_groups_is_refused():
    config = changed(Config(), {"method.name": "lewel", "wrappers": []})
    with pytest.raises(UserError, match=r"method\.dim 256 cannot be cut into method\.groups 3"):
        check_together(changed(config, {"method.groups": 3}))
    with pytest.raises(UserError, match=r"a batch of 128 does not fit into LEWEL's queues of 100"):
        check_together(changed(config, {"method.base": "moco", "method.queue": 100}))
    check_together(changed(config, {"method.queue": 100}))  # which BYOL does not have
    with pytest.raises(UserError, match=r"the 96 channels of timm/test_resnet cannot be cut into method\.groups 5"):
        lewel(dim=10, groups=5)
