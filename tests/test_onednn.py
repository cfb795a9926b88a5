"""Products by oneDNN equal those in float64, whatever part of a matrix they are of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from subprune.program import onednn
from subprune.statistics.sums import column_sums, energy_of, gram_of


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def close(given: Tensor, expected: Tensor, rtol: float = 1e-6) -> None:
    """To rounding of sums in float32, relative to the largest."""
    assert float((given.double() - expected).abs().max()) <= rtol * float(expected.abs().max())


@pytest.mark.parametrize("part", [slice(None), slice(130, 400), slice(0, 600, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products_of_parts_of_matrices(part: slice, dtype: torch.dtype) -> None:
    a, b = normal(90, 600, dtype=dtype)[:, part], normal(90, 300, dtype=dtype)
    made = onednn.crossed(a, b)
    assert made.dtype == dtype
    close(made, a.double().T @ b.double())
    close(onednn.crossed(b, a), b.double().T @ a.double())


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("width", [4, 200])
def test_products_one_by_one(count: int, width: int) -> None:
    a, b = normal(count, 17, width), normal(count, 17, 150)
    made = onednn.crossed_each(a, b)
    assert made.shape == (count, width, 150)
    if count:
        close(made, a.double().mT @ b.double())


def test_products_of_no_rows_are_zero() -> None:
    assert not onednn.crossed(normal(0, 200), normal(0, 300)).any()


def test_half_of_a_gram_matrix_and_its_copy() -> None:
    rows = normal(70, 1100)
    gram, expected = gram_of(rows), rows.double().T @ rows.double()
    close(gram, expected)
    assert torch.equal(gram[600:, :512], gram[:512, 600:].T)


def test_a_linear_layer_of_a_view() -> None:
    x, weight, bias = normal(8, 6, 40)[:, ::2], normal(40, 30).T, normal(30)
    close(onednn.linear(x, weight, bias), x.double() @ weight.double().T + bias)


def test_sums_of_columns_and_of_squares() -> None:
    rows = 100 + normal(5000, 33)
    close(column_sums(rows), rows.double().sum(0), 1e-14)
    assert column_sums(rows[:0]).tolist() == [0.0] * 33
    assert energy_of(rows) == pytest.approx(float(rows.double().square().sum()), rel=1e-6)
