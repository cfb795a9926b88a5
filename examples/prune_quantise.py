"""Prune a language model, then keep its weights in 8 bits: with torchao where that is installed,
else with PyTorch's own dynamic quantisation of linear layers.

    python examples/prune_quantise.py FOLDER TEXT
"""

from __future__ import annotations

import copy
import importlib.util
import sys
import warnings

import torch
from texts import case
from torch import nn

import subprune


def quantised(model: nn.Module) -> nn.Module:
    """A copy with the weights of linear layers in 8 bits; an output layer that shares its weights
    with the embedding is left.
    """
    model = copy.deepcopy(model)
    tied = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}

    def chosen(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and id(module.weight) not in tied

    if importlib.util.find_spec("torchao"):
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        quantize_(model, Int8WeightOnlyConfig(), filter_fn=chosen)
        return model
    names = {name for name, module in model.named_modules() if chosen(module, name)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it will go, for torchao
        small: nn.Module = torch.ao.quantization.quantize_dynamic(model, names, torch.qint8)
    return small


def main(words: list[str] | None = None) -> None:
    given = case("Prune, then quantise.", words)
    result = subprune.prune(given.model, given.data, keep=0.8, n_samples=None)
    for name, net in (("pruned", result.model), ("in 8 bits", quantised(result.model))):
        found = subprune.evaluate(net, given.test, context=given.context)
        print(f"{name}\n{found}\n")
    torch.save(quantised(result.model).state_dict(), given.output / "quantised.pt")


if __name__ == "__main__":
    main(sys.argv[1:])
