"""Every test must leave PyTorch's global state as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

_ORIGINALS = (F.linear, F.scaled_dot_product_attention)


@pytest.fixture(autouse=True)
def _global_state_is_kept() -> Iterator[None]:
    yield
    enabled = torch.is_grad_enabled()
    torch.set_grad_enabled(True)  # one culprit must not fail the rest
    assert enabled, "gradients were left switched off"
    assert (F.linear, F.scaled_dot_product_attention) == _ORIGINALS, (
        "a patched function was left in place"
    )
