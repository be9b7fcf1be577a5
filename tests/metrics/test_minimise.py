"""Problems side by side against their closed forms and against one another."""

from __future__ import annotations

import torch

from wingbar.metrics.minimise import minimise


def quadratics(curvature: torch.Tensor, middle: torch.Tensor):
    return lambda x: ((curvature * (x - middle) ** 2 / 2).sum(dim=(1, 2)), curvature * (x - middle))


def test_quadratics_of_very_different_scales_reach_their_minima_side_by_side():
    generator = torch.Generator().manual_seed(0)
    curvature = 10 ** (3 * torch.rand(4, 6, 5, generator=generator, dtype=torch.float64) - 1)
    curvature *= torch.tensor([1e-3, 1.0, 1e3, 1.0]).view(4, 1, 1)
    middle = torch.randn(4, 6, 5, generator=generator, dtype=torch.float64)
    start = torch.zeros_like(middle)
    start[3] = middle[3]  # already there
    tolerance = 1e-8 * curvature.amin(dim=(1, 2))
    got = minimise(quadratics(curvature, middle), start, tolerance=tolerance, iterations=500)
    torch.testing.assert_close(got, middle, rtol=0, atol=1e-7)
    assert torch.equal(got[3], middle[3])


def test_a_problem_ends_where_it_would_have_ended_alone():
    generator = torch.Generator().manual_seed(1)
    curvature, middle = 0.1 + torch.rand(2, 3, 4, 2, generator=generator)
    start, tolerance = torch.zeros(3, 4, 2), torch.tensor([1e-1, 1e-3, 1e-5])
    together = minimise(quadratics(curvature, middle), start, tolerance=tolerance, iterations=100)
    for place in range(3):
        own = slice(place, place + 1)
        alone = minimise(quadratics(curvature[own], middle[own]), start[own], tolerance=tolerance[own], iterations=100)
        torch.testing.assert_close(alone, together[own])


def test_unreachable_tolerances_end_at_rounding_and_stay_finite():
    middle = torch.full((2, 3, 1), 1.7)
    got = minimise(
        quadratics(torch.full((2, 3, 1), 1e-3), middle), 0 * middle, tolerance=torch.zeros(2), iterations=500
    )
    torch.testing.assert_close(got, middle, rtol=1e-2, atol=0)
