from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from wingbar.methods.criteria import GradCam, LowVariance, Uniform
from wingbar.methods.losses import nt_xent, without_positive
from wingbar.methods.moco import MoCo
from wingbar.methods.perturb import Noise, noise_std_from_variance, relative
from wingbar.methods.simsiam import SimSiam
from wingbar.methods.synth import Readings, SynthPairs, in_one_call, shared_statistics, teacher_view
from wingbar.models.decoder import tiny_decoder
from wingbar.models.encoder import evaluation_statistics
from wingbar.models.trunks import build_encoder
from wingbar.train.loop import train
from wingbar.train.optim import Rule, build_optimizers
from wingbar.types import Batch

DIM = 96  # of the test encoder's feature
OURS = [GradCam(), LowVariance(DIM, size=64, ready=8)]
exactly = partial(assert_close, rtol=0, atol=0)


def moco(**options: Any) -> MoCo:
    torch.manual_seed(0)
    return MoCo(build_encoder("timm/test_resnet"), **{"dim": 16, "queue": 32, "momentum": 0.9, **options})


def simsiam() -> SimSiam:
    torch.manual_seed(0)
    return SimSiam(build_encoder("timm/test_resnet"), dim=24, hidden=12)


def low_variance(**options: Any) -> LowVariance:
    """One that has seen enough, and perturbs some dimensions but not all."""
    criterion = LowVariance(DIM, **{"size": 64, "kappa": 0.05, "ready": 32, **options})
    criterion.after_step(torch.rand(32, DIM, generator=Generator().manual_seed(5)) * torch.linspace(0.5, 1.5, DIM))
    return criterion


def synth(
    base: Any = None, criteria: Any = None, *, alpha: float = 1.0, nu: float = 0.5, **readings: Any
) -> SynthPairs:
    torch.manual_seed(1)
    criteria = [GradCam(), low_variance()] if criteria is None else criteria
    decoder = tiny_decoder(DIM, 32)
    return SynthPairs(base or moco(), decoder, criteria, alpha=alpha, nu=nu, readings=Readings(**readings))


def native(**options: Any) -> SynthPairs:
    """SimSiam with its own loss, behind Grad-CAM and between the pair (A27)."""
    base = simsiam()
    return synth(base, [GradCam(loss=base.compare_own)], pair_loss=base.compare, **options)


def on_simsiam(**options: Any) -> SynthPairs:
    return synth(simsiam(), **options)


every_base = pytest.mark.parametrize("build", [synth, on_simsiam, native], ids=["moco", "simsiam", "native"])


def batch(seed: int = 0, size: int = 8) -> Batch:
    image, *views = torch.randn(3, size, 3, 32, 32, generator=Generator().manual_seed(seed))
    return Batch(image, tuple(views), torch.arange(size), seed=seed)


# --- the parts, put together by hand ---------------------------------------------------------------------------------


class Made(NamedTuple):
    feature: Tensor
    perturbed: Tensor
    rebuilt: Tensor
    twin: Tensor


def make(method: SynthPairs, given: Batch) -> Made:
    """What lies between the losses, one public part after the other. Moves running statistics, as training does."""
    feature = method.encoder(given.image).vector
    rebuilt = method.decoder(feature)
    perturbed = method.perturb(feature.detach(), method.importances(feature.detach(), given), given.seed)
    return Made(feature.detach(), perturbed, rebuilt.detach(), method.twin(perturbed).detach())


def made(method: SynthPairs, given: Batch) -> Made:
    return make(copy.deepcopy(method), given)


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True)


def among_all(first: Tensor, second: Tensor) -> Tensor:
    """SimCLR's loss as cross-entropy over a (2n, 2n) matrix without its diagonal."""
    rows = unit(torch.cat([first, second]))
    logits = (rows @ rows.T / 0.2).masked_fill(torch.eye(len(rows), dtype=torch.bool), -torch.inf)
    return functional.cross_entropy(logits, torch.arange(len(rows)).roll(len(first)))


def embedded(method: SynthPairs, *images: Tensor) -> list[Tensor]:
    copied = copy.deepcopy(method)
    return [copied.project(copied.encoder(image).vector).detach() for image in images]


def listing(method: SynthPairs, given: Batch) -> dict[str, Tensor]:
    """The training step of the specification (2.3), line by line, with MoCo, Grad-CAM and low variance."""
    method = copy.deepcopy(method)
    base, decode, bank = method.base, method.decoder, method.criteria[1].bank.seen
    image, (one, two), n = given.image, given.views, len(given.image)

    query, key = base.projector(base.encoder(one).vector), base.teacher_projector(base.teacher_encoder(two).vector)
    query, key = unit(query), unit(key)
    logits = torch.cat([(query * key).sum(dim=1, keepdim=True), query @ unit(base.queue.rows).T], dim=1) / 0.2
    contrast = functional.cross_entropy(logits, torch.zeros(n, dtype=torch.long))

    v = base.encoder(image).vector
    rebuilt = decode(v)

    u = v.detach().requires_grad_()
    z, z2 = unit(base.projector(u)), unit(base.projector(base.encoder(two).vector)).detach()
    logits = (z @ torch.cat([z2, z.detach()]).T / 0.2).masked_fill(torch.eye(2 * n)[n:].bool(), -torch.inf)
    own = functional.cross_entropy(logits, torch.arange(n), reduction="sum")
    eta = (torch.autograd.grad(own, u)[0] * u.detach()).relu()
    eta = (eta - eta.amin(1, keepdim=True)) / (eta.amax(1, keepdim=True) - eta.amin(1, keepdim=True))
    s = unit(bank).std(dim=0, correction=0)
    narrow, s = s < 0.05, (s - s.min()) / (s.max() - s.min())
    generator = Generator().manual_seed(given.seed)
    v_p = v.detach() + 0.1 * (1 - eta) * torch.randn(n, DIM, generator=generator)
    v_p = v_p + narrow * 0.05 * (1 - s) * torch.randn(n, DIM, generator=generator)

    pair = [base.projector(base.encoder(x).vector) for x in (rebuilt.detach(), decode(v_p).detach())]
    return {"base": contrast, "rebuild": functional.mse_loss(rebuilt, image), "pair": 0.5 * among_all(*pair)}


def gradients(loss: Tensor, parameters: Iterable[nn.Parameter]) -> list[float]:
    """Sum of absolute gradients per parameter; nothing for parameters the loss does not reach."""
    found = torch.autograd.grad(loss, list(parameters), retain_graph=True, allow_unused=True)
    return [gradient.abs().sum().item() for gradient in found if gradient is not None]


def curve(method: Any, steps: int = 4, parts: int = 1) -> list[float]:
    """The objective over a few steps of training."""
    seen: list[float] = []
    optimizers = build_optimizers(method.param_groups(), Rule(lr=0.05, weight_decay=1e-4))
    after = [lambda step, outputs: seen.extend(sum(out.losses.values()).item() for out in outputs)]
    batches = [[batch(10 * step + part) for part in range(parts)] for step in range(steps)]
    train(method, batches.__getitem__, optimizers, lambda step: 1.0, start=0, stop=steps, after=after)
    return seen


# --- the objective ---------------------------------------------------------------------------------------------------


def test_a_step_equals_the_listing():
    method = synth()
    assert_close(method(batch()).losses, listing(method, batch()), rtol=1e-4, atol=1e-5)
    curve(method, steps=2)
    assert_close(method(batch(3)).losses, listing(method, batch(3)), rtol=1e-4, atol=1e-5)


@every_base
def test_the_base_method_and_its_loss_are_left_alone(build):
    method = build()
    exactly(method(batch()).losses["base"], build().base(batch()).losses["base"])


def test_losses_are_weighted():
    plain, weighted = synth(nu=1.0)(batch()).losses, synth(alpha=0.25, nu=3.0)(batch()).losses
    assert_close(weighted["rebuild"], 0.25 * plain["rebuild"])
    assert_close(weighted["pair"], 3 * plain["pair"])


@pytest.mark.parametrize(
    ("base", "criteria", "parts"),
    [(moco, [], 1), (moco, OURS, 1), (moco, OURS, 2), (simsiam, [], 1), (simsiam, OURS, 1)],
)
def test_without_its_weights_it_is_the_base_method_bit_for_bit(base, criteria: list[nn.Module], parts: int):
    alone, wrapped = base(), synth(base(), copy.deepcopy(criteria), alpha=0.0, nu=0.0)
    expected = curve(alone, parts=parts)
    assert curve(wrapped, parts=parts) == expected
    exactly(list(wrapped.base.parameters()), list(alone.parameters()))
    assert len(set(expected)) == 4 * parts


@pytest.mark.parametrize(("alpha", "nu"), [(0.0, 0.5), (1.0, 0.0)])
def test_each_weight_alone_makes_it_another_method(alpha: float, nu: float):
    alone, wrapped = moco(), synth(alpha=alpha, nu=nu)
    curve(alone, steps=1)
    curve(wrapped, steps=1)
    assert not torch.equal(next(wrapped.encoder.parameters()), next(alone.encoder.parameters()))


# --- what may not leave a trace --------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [synth, on_simsiam, native, partial(synth, second=teacher_view)])
def test_probing_changes_no_buffer(build):
    """Nor parameters, nor where the rings stand: the whole state_dict, extra state included."""
    method = build().train()
    feature, before = method.encoder(batch().image).vector.detach(), copy.deepcopy(method.state_dict())
    method.importances(feature, batch())
    exactly(method.state_dict(), before)


@every_base
def test_synthetic_passes_leave_no_running_statistics_behind(build):
    """Under the default, every buffer ends where it would without the pair loss (A13, A37)."""
    method, without = build(), build(nu=0.0)
    method(batch())
    without(batch())
    exactly(method.state_dict(), without.state_dict())


def test_shared_statistics_are_those_of_all_passes_in_order():
    method = synth(encoder_statistics=shared_statistics)
    copied = copy.deepcopy(method)
    copied.base(batch())
    parts = make(copied, batch())
    for image in (parts.rebuilt, parts.twin):
        copied.encoder(image)
    method(batch())
    exactly(method.encoder.state_dict(), copied.encoder.state_dict())
    frozen = synth()
    frozen(batch())
    assert not torch.equal(
        method.encoder.state_dict()["trunk.bn1.running_mean"], frozen.encoder.state_dict()["trunk.bn1.running_mean"]
    )


def test_evaluation_statistics_are_the_running_ones():
    method = synth(encoder_statistics=evaluation_statistics)
    copied = copy.deepcopy(method)
    copied.base(batch())
    parts = make(copied, batch())
    expected = 0.5 * among_all(*embedded(copied.eval(), parts.rebuilt, parts.twin))
    assert_close(method(batch()).losses["pair"], expected)
    assert all(part.training for part in method.modules())
    assert not torch.isclose(expected, synth()(batch()).losses["pair"], rtol=1e-3)


def test_the_decoders_statistics_while_it_makes_twins():
    """A37: by default only the rebuilt pass moves them; shared, the twins' too; evaluation, twins use them."""
    for statistics, passes in [({}, 1), ({"decoder_statistics": shared_statistics}, 2)]:
        method = synth(**statistics)
        feature, perturbed, _, _ = made(method, batch())
        decoder = copy.deepcopy(method.decoder)
        for rows in (feature, perturbed)[:passes]:
            decoder(rows)
        method(batch())
        exactly(method.decoder.state_dict(), decoder.state_dict())
    method = synth(decoder_statistics=evaluation_statistics)
    method(batch())
    perturbed = made(method, batch()).perturbed
    assert_close(method.twin(perturbed), copy.deepcopy(method.decoder).eval()(perturbed).detach())


def test_forward_is_a_function_of_weights_state_and_batch():
    method = synth()
    torch.manual_seed(123)
    before = torch.get_rng_state()
    first, again = method(batch()), method(batch())
    assert torch.equal(torch.get_rng_state(), before)
    exactly(first.losses, again.losses)


# --- gradients -------------------------------------------------------------------------------------------------------


@every_base
def test_the_reconstruction_loss_trains_encoder_and_decoder(build):
    method = build()
    rebuild = method(batch()).losses["rebuild"]
    assert sum(gradients(rebuild, method.decoder.parameters())) > 0
    assert sum(gradients(rebuild, method.encoder.parameters())) > 0


def test_the_reconstruction_loss_can_be_kept_from_the_encoder():
    method, usual = synth(rebuild_trains_encoder=False), synth()
    losses = method(batch()).losses
    exactly(losses, usual(batch()).losses)
    assert gradients(losses["rebuild"], method.encoder.parameters()) == []
    assert sum(gradients(losses["rebuild"], method.decoder.parameters())) > 0


@every_base
def test_the_pair_loss_trains_the_encoder_and_its_head_only(build):
    method = build()
    pair = method(batch()).losses["pair"]
    assert gradients(pair, method.decoder.parameters()) == []
    assert sum(gradients(pair, method.encoder.parameters())) > 0
    assert sum(gradients(pair, method.base.projector.parameters())) > 0


def test_the_pair_loss_can_train_the_decoder():
    method, usual = synth(pair_trains_decoder=True), synth()
    losses = method(batch()).losses
    assert_close(losses, usual(batch()).losses)
    assert sum(gradients(losses["pair"], method.decoder.parameters())) > 0


@pytest.mark.parametrize("build", [synth, on_simsiam, native])
def test_every_trained_parameter_is_in_one_group_and_gets_a_gradient(build):
    method = build()
    grouped = [parameter for group in method.param_groups() for parameter in group.parameters]
    assert sorted(map(id, grouped)) == sorted(id(p) for p in method.parameters() if p.requires_grad)
    assert [group.name for group in method.param_groups() if group.adam] == ["decoder"]
    sum(method(batch()).losses.values()).backward()
    assert all(parameter.grad is not None for parameter in grouped)
    assert all(p.grad is None for p in method.parameters() if not p.requires_grad)


def test_under_autocast_every_trained_parameter_still_gets_its_gradient():
    """Casts that autocast remembers from a pass without a graph would cut the later one off."""
    full, mixed = synth(), synth()
    sum(full(batch()).losses.values()).backward()
    with torch.autocast("cpu", torch.bfloat16):
        losses = mixed(batch()).losses
    sum(losses.values()).backward()
    assert all(loss.dtype == torch.float32 for loss in losses.values())
    for one, other in zip(full.parameters(), mixed.parameters(), strict=True):
        if one.requires_grad and one.grad.norm() > 1e-3:
            assert functional.cosine_similarity(one.grad.flatten(), other.grad.flatten(), dim=0) > 0.5


# --- importance ------------------------------------------------------------------------------------------------------


def finite_importance(projector: nn.Module, feature: Tensor, second: Tensor) -> Tensor:
    """Eq. 3 and 4 by central differences of each image's own loss in float64, one dimension at a time."""
    exact, n, step = copy.deepcopy(projector).double(), len(feature), 1e-6
    with torch.no_grad():
        fixed, second = unit(exact(feature.double())), unit(second.double())
        moves, scores = step * torch.eye(feature.shape[1], dtype=torch.float64), []
        for i, row in enumerate(feature.double()):
            others = torch.cat([second, fixed[torch.arange(n) != i]])

            def own(moved: Tensor, i: int = i, others: Tensor = others) -> Tensor:
                target = torch.full((len(moved),), i)
                return functional.cross_entropy(unit(exact(moved)) @ others.T / 0.2, target, reduction="none")

            scores.append((own(row + moves) - own(row - moves)) / (2 * step) * row)
    score = torch.stack(scores).clamp_min(0)
    low, high = score.amin(dim=1, keepdim=True), score.amax(dim=1, keepdim=True)
    return ((score - low) / (high - low)).float()


def test_the_importance_of_moco_features_equals_finite_differences():
    method = synth(criteria=[GradCam()])
    feature = made(method, batch()).feature
    (second,) = embedded(method, batch().views[1])
    (got,) = method.importances(feature, batch())
    assert_close(got, finite_importance(method.base.projector, feature, second), rtol=0, atol=1e-4)


def test_the_teacher_can_embed_the_second_view():
    method = synth(criteria=[GradCam()], second=teacher_view)
    curve(method, steps=2)  # teacher and student part
    feature = made(method, batch()).feature
    second = copy.deepcopy(method.base).teach(batch().views[1])
    (got,) = method.importances(feature, batch())
    assert_close(got, finite_importance(method.base.projector, feature, second), rtol=0, atol=1e-4)
    (student,) = embedded(method, batch().views[1])
    assert not torch.allclose(got, finite_importance(method.base.projector, feature, student), atol=1e-2)


# --- noise and twins -------------------------------------------------------------------------------------------------


def test_without_noise_a_twin_is_the_rebuilt_image_bit_for_bit():
    method = synth(criteria=[GradCam(eps=0.0), low_variance(eps=0.0, kappa=math.inf)])
    method.decoder.eval()
    _, _, rebuilt, twin = made(method, batch())
    exactly(twin, rebuilt)


def noise_of(criteria: list[nn.Module], noise: Noise = Noise()) -> Tensor:  # noqa: B008  frozen
    feature, perturbed, _, _ = made(synth(criteria=criteria, noise=noise), batch())
    return perturbed - feature


def test_criteria_are_a_list():
    """Each criterion perturbs where it says; those not in the list do not; none means no noise."""
    draw = torch.randn(8, DIM, generator=Generator().manual_seed(0))
    assert noise_of([]).count_nonzero() == 0
    assert_close(noise_of([Uniform(eps=0.3)]), 0.3 * draw, rtol=1e-3, atol=1e-6)
    cam = noise_of([GradCam()])
    (importance,) = synth(criteria=[GradCam()]).importances(made(synth(), batch()).feature, batch())
    assert_close(cam, 0.1 * (1 - importance) * draw, rtol=1e-3, atol=1e-6)
    low = noise_of([low_variance()])
    untouched = (low == 0).all(dim=0)
    assert 0 < untouched.sum() < DIM
    assert torch.equal(low != 0, ~untouched.expand(8, DIM))
    both = noise_of([GradCam(), low_variance()])
    assert_close(both[:, untouched], cam[:, untouched])


@pytest.mark.parametrize("criteria", [[LowVariance(DIM)], [low_variance(kappa=0.0)]], ids=["not ready", "kappa 0"])
def test_low_variance_perturbs_nothing_before_it_is_ready_or_with_kappa_zero(criteria: list[nn.Module]):
    feature, perturbed, rebuilt, twin = made(synth(criteria=criteria), batch())
    exactly(perturbed, feature)
    exactly(twin, rebuilt)


def test_the_readings_of_the_noise_reach_the_twin():
    uniform = [Uniform(eps=0.04)]
    plain = noise_of(uniform)
    assert_close(noise_of(uniform, Noise(std=noise_std_from_variance)), plain * 0.2 / 0.04, rtol=1e-3, atol=1e-5)
    feature = made(synth(), batch()).feature
    assert_close(noise_of(uniform, Noise(unit=relative)), plain * feature.abs().mean(), rtol=1e-3, atol=1e-5)
    shared = noise_of(uniform, Noise(per_image=False))
    assert_close(shared, shared[:1].expand_as(shared), rtol=0, atol=1e-6)
    assert plain.std(dim=0).min() > 0.01
    free, floored = (
        made(synth(criteria=uniform, noise=noise), batch()).perturbed for noise in (Noise(), Noise(floor=0.0))
    )
    assert free.min() < 0
    exactly(floored, free.clamp_min(0))


def test_twins_depend_on_the_seed_of_the_batch_alone():
    method = synth()
    one, other = batch(), Batch(batch().image, batch().views, batch().index, seed=99)
    torch.manual_seed(5)
    first = made(method, one)
    torch.manual_seed(6)
    exactly(made(method, one), first)
    assert (made(method, other).twin - first.twin).abs().max() > 1e-3
    exactly(made(method, other).rebuilt, first.rebuilt)
    losses, others = method(one).losses, method(other).losses
    exactly([others["base"], others["rebuild"]], [losses["base"], losses["rebuild"]])
    assert others["pair"] != losses["pair"]


@every_base
def test_the_pair_loss_compares_embeddings_of_rebuilt_images_and_twins(build):
    method = build()
    first, second = embedded(method, *made(method, batch())[2:])
    expected = copy.deepcopy(method.base).compare(first, second) if build is native else among_all(first, second)
    assert_close(method(batch()).losses["pair"], 0.5 * expected, rtol=1e-4, atol=1e-5)


def test_one_direction_takes_the_rebuilt_images_as_anchors():
    method = synth(pair_loss=partial(nt_xent, symmetric=False))
    first, second = map(unit, embedded(method, *made(method, batch())[2:]))
    logits = (first @ torch.cat([second, first]).T / 0.2).masked_fill(torch.eye(16)[8:].bool(), -torch.inf)
    expected = 0.5 * functional.cross_entropy(logits, torch.arange(8))
    assert_close(method(batch()).losses["pair"], expected, rtol=1e-4, atol=1e-5)


def test_one_call_shares_statistics_between_rebuilt_images_and_twins():
    together = synth(embed_pair=in_one_call)
    parts = made(together, batch())
    (both,) = embedded(together, torch.cat([parts.rebuilt, parts.twin]))
    got = together(batch()).losses["pair"]
    assert_close(got, 0.5 * among_all(*both.chunk(2)), rtol=1e-4, atol=1e-5)
    assert not torch.isclose(got, synth()(batch()).losses["pair"], rtol=1e-4)


def test_one_call_equals_two_in_evaluation_mode():
    one, two = synth(embed_pair=in_one_call).eval(), synth().eval()
    assert_close(one(batch()).losses, two(batch()).losses)


# --- state -----------------------------------------------------------------------------------------------------------


def test_accumulated_batches_reach_queue_and_bank_once_each_and_the_teacher_once():
    method = synth(criteria=[GradCam(), LowVariance(DIM, size=20, ready=8)])
    start = method.base.projector[0].weight.detach().clone()
    queue, bank = deque(method.base.queue.rows.tolist(), maxlen=32), deque(torch.zeros(20, DIM).tolist(), maxlen=20)
    seen: list[Any] = []
    optimizers = build_optimizers(method.param_groups(), Rule(lr=0.05, weight_decay=0.0))
    after = [lambda step, outputs: seen.extend(out.carry for out in outputs)]
    train(method, lambda step: [batch(1), batch(2)], optimizers, lambda step: 1.0, start=0, stop=1, after=after)
    for carry in seen:
        queue.extend(carry.base.tolist())
        bank.extend(carry.feature.tolist())
    for ring, twin in [(method.base.queue, queue), (method.criteria[1].bank, bank)]:
        assert ring.rows.roll(-ring.position, dims=0).tolist() == list(twin)
    went = method.base.projector[0].weight.detach() - start
    assert_close(method.base.teacher_projector.module[0].weight - start, 0.1 * went, rtol=1e-2, atol=1e-7)


def test_the_bank_holds_features_of_plain_images():
    method = synth(criteria=[LowVariance(DIM, size=16)])
    expected = made(method, batch()).feature
    method.after_step([method(batch()).carry])
    exactly(method.criteria[0].bank.seen, expected)


def test_a_saved_method_goes_on_exactly():
    one, other = synth(), synth(criteria=[GradCam(), LowVariance(DIM, size=64, kappa=0.05, ready=32)])
    curve(one, steps=2)
    other.load_state_dict(one.state_dict())
    exactly(other(batch(7)).losses, one(batch(7)).losses)


# --- wrapping --------------------------------------------------------------------------------------------------------


def nested() -> SynthPairs:
    return synth(synth(alpha=0.5, nu=0.25), [Uniform()], alpha=2.0, nu=1.0)


def test_a_wrapped_method_is_a_method():
    method = nested()
    assert method.encoder is method.base.base.encoder
    grouped = [id(parameter) for group in method.param_groups() for parameter in group.parameters]
    assert sorted(grouped) == sorted(id(p) for p in method.parameters() if p.requires_grad)
    assert all(math.isfinite(value) for value in curve(method, steps=2))
    assert len(method.base.base.queue) == 16
    assert len(method.base.criteria[1].bank) == 48
    exactly(method.eval().embed(batch().image), method.encoder(batch().image).vector)


def test_the_objective_of_a_wrapped_method_is_its_bases_and_its_own():
    method = nested()
    inner = copy.deepcopy(method.base)(batch()).losses
    around_moco = SynthPairs(
        copy.deepcopy(method.base.base), copy.deepcopy(method.decoder), [Uniform()], alpha=2.0, nu=1.0
    )
    own = around_moco(batch()).losses
    expected = sum(inner.values()) + own["rebuild"] + own["pair"]
    assert_close(sum(method(batch()).losses.values()), expected)


def test_both_decoders_of_a_wrapped_method_learn():
    method = nested()
    sum(method(batch()).losses.values()).backward()
    for part in (method, method.base):
        assert all(parameter.grad is not None for parameter in part.decoder.parameters())


# --- facts -----------------------------------------------------------------------------------------------------------


def test_facts_by_hand():
    method = synth()
    feature, perturbed, rebuilt, twin = made(method, batch())
    importances = copy.deepcopy(method).importances(feature, batch())
    facts = method(batch()).facts
    moved = [(p - v).norm() / v.norm() for p, v in zip(perturbed, feature, strict=True)]
    assert_close(facts["noise_ratio"], sum(moved) / 8)
    assert_close(facts["twin_change"], functional.mse_loss(twin, rebuilt).sqrt())
    for name, importance in zip(["GradCam", "LowVariance"], importances, strict=True):
        share = sum(x < 1 for x in importance.flatten().tolist()) / importance.numel()
        assert facts[f"perturbed/{name}"].item() == pytest.approx(share)
    assert_close(facts["chance/rebuild"], batch().image.var(dim=0, correction=0).mean())
    assert not any(isinstance(fact, Tensor) and fact.requires_grad for fact in facts.values())


@pytest.mark.parametrize(
    "loss",
    [nt_xent, partial(nt_xent, temperature=0.5, symmetric=False), partial(nt_xent, denominator=without_positive)],
    ids=["default", "one direction", "without positive"],
)
def test_chance_is_what_a_blind_encoder_gets(loss):
    blind = torch.ones(8, 16)
    facts = synth(pair_loss=loss)(batch()).facts
    assert facts["chance/pair"] == pytest.approx(0.5 * loss(blind, blind).item(), rel=1e-5)
