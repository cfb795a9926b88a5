"""A model and example inputs to groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from subprune.data.batches import examples
from subprune.program.accept import check_kind
from subprune.program.borrow import given_back
from subprune.program.record import record_given
from subprune.structure.grouping import analyse

if TYPE_CHECKING:
    from subprune.structure.groups import Structure

__all__ = ["find_groups"]


@given_back
def find_groups(model: nn.Module, example_inputs: Any) -> Structure:
    """Every group of units that can be removed from the model, and why the rest cannot.

    `example_inputs` is a tensor, a tuple of arguments or a dict of keyword arguments, or
    calibration data as `prune` takes it, of which a few inputs are used. The model is run once, on
    fake tensors: nothing is computed, nothing is changed.
    """
    check_kind(model)
    return analyse(record_given(model, examples(model, example_inputs), "the example inputs"))
