"""Multiply-adds of recurrent layers; PyTorch's counter does not see those that are one kernel."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils.rnn import PackedSequence

__all__ = ["recurrent_flops"]

_GATES = {"LSTM": 4, "GRU": 3}


def recurrent_flops(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """FLOPs of one call of an LSTM, GRU or RNN, or of a cell of one; None for any other module.

    Every step of every layer and direction multiplies its input and the state before with the
    gates' weights: ``2 · gates · hidden · (input + state)``; with ``proj_size`` the state is made
    by ``2 · hidden · proj_size`` more. Padding that a packed sequence left out is not a step.
    """
    if not isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return None
    x = args[0] if args else kwargs["input"]
    data = x.data if isinstance(x, PackedSequence) else x
    steps = data.numel() // max(1, module.input_size)
    if isinstance(module, nn.RNNCellBase):
        return 2 * steps * module.weight_hh.shape[0] * (module.input_size + module.hidden_size)
    gates = _GATES.get(module.mode, 1) * module.hidden_size
    state = module.proj_size or module.hidden_size
    directions = 2 if module.bidirectional else 1
    first = gates * (module.input_size + state)
    others = gates * (directions * state + state) * (module.num_layers - 1)
    projections = module.hidden_size * module.proj_size * module.num_layers
    return 2 * steps * directions * (first + others + projections)
