"""Adam in the eigenvectors of Shampoo's factors, which `recover` trains with."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from subprune.distil import optimiser
from subprune.distil.optimiser import Memory, Preconditioned


def rotation(size: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, generator=random, dtype=torch.float64))[0]


def gradients(count: int, *shape: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=random, dtype=torch.float64) for _ in range(count)]


def test_turned_gradients_give_turned_steps() -> None:
    """What a layer's inputs or outputs are called does not matter, nor do their mixtures."""
    left, right = rotation(5, 1), rotation(5, 2)
    first, *others = gradients(25, 5, 5)
    plain = Memory.of(first, vector=False)
    turned = Memory.of(left @ first @ right.T, vector=False)
    for step, gradient in enumerate(others, 1):
        other = left @ gradient @ right.T
        expected = left @ plain.direction(gradient, step) @ right.T
        torch.testing.assert_close(turned.direction(other, step), expected, rtol=1e-6, atol=1e-8)


def test_directions_become_those_of_the_usual_gradient() -> None:
    scales = torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)
    across = rotation(4, 3)
    memory = None
    for step, gradient in enumerate(gradients(200, 4, 6), 1):
        gradient = across @ (scales[:, None] * gradient)
        memory = memory or Memory.of(gradient, vector=False)
        memory.direction(gradient, step)
    assert memory is not None
    assert memory.left is not None
    basis, second = memory.left.basis, memory.left.second
    torch.testing.assert_close(basis.T @ basis, torch.eye(4, dtype=torch.float64))
    inside = basis.T @ second @ basis
    assert (inside - inside.diag().diag()).norm() < 0.05 * inside.norm()


@pytest.mark.parametrize("limit", [None, "_WIDEST", "_LONGEST"])
def test_vectors_and_sides_that_are_too_wide_get_adam_as_it_is(
    limit: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is not None:
        monkeypatch.setattr(optimiser, limit, 2)
    shape = (7,) if limit is None else (4, 3)
    one = nn.Parameter(torch.randn(*shape, dtype=torch.float64))
    two = nn.Parameter(one.detach().clone())
    mine = Preconditioned([one], lr=1e-2)
    theirs = torch.optim.Adam([two], lr=1e-2, betas=(0.9, 0.95))
    for gradient in gradients(12, *shape):
        one.grad, two.grad = gradient, gradient.clone()
        mine.step()
        theirs.step()
    torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_weights_that_depend_on_each_other_are_found_in_fewer_steps_than_by_adam() -> None:
    """Inputs [N, 6] of very different sizes along directions that no axis knows."""
    random = torch.Generator().manual_seed(0)
    sizes = torch.logspace(0, -2, 6, dtype=torch.float64)
    x = torch.randn(200, 6, generator=random, dtype=torch.float64) * sizes @ rotation(6, 4).T
    wanted = nn.Linear(6, 4, bias=False).double()
    with torch.no_grad():
        y = wanted(x)
    losses = []
    for kind in (Preconditioned, torch.optim.Adam):
        layer = nn.Linear(6, 4, bias=False).double()
        nn.init.zeros_(layer.weight)
        rule = kind(layer.parameters(), lr=2e-2)
        for _ in range(150):
            rule.zero_grad()
            loss = (layer(x) - y).square().mean()
            loss.backward()
            rule.step()
        losses.append(loss.item())
    assert losses[0] < 0.1 * losses[1]


def test_a_parameter_whose_gradient_comes_late_starts_then() -> None:
    late, always = (nn.Parameter(torch.zeros(3, 3, dtype=torch.float64)) for _ in range(2))
    alone = copy.deepcopy(late)
    both, single = Preconditioned([late, always], lr=1e-2), Preconditioned([alone], lr=1e-2)
    given = gradients(8, 3, 3)
    for number, gradient in enumerate(given):
        always.grad = gradient.clone()
        late.grad = gradient.clone() if number >= 3 else None
        both.step()
        if number >= 3:
            alone.grad = gradient.clone()
            single.step()
    assert torch.equal(late, alone)


def test_a_gradient_that_is_lost_raises_nothing() -> None:
    weight = nn.Parameter(torch.ones(3, 3))
    rule = Preconditioned([weight], lr=1e-2)
    weight.grad = torch.full((3, 3), float("nan"))
    for _ in range(12):
        rule.step()
    assert weight.isnan().all()
