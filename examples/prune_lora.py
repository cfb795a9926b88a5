"""Prune a language model, train low-rank adapters on a text (package peft), and merge them.

python examples/prune_lora.py FOLDER TEXT
"""

from __future__ import annotations

import copy
import sys

import torch
from texts import case

import subprune


def main(words: list[str] | None = None, epochs: int = 1) -> None:
    from peft import LoraConfig, get_peft_model

    given = case("Prune, then train adapters.", words)
    result = subprune.prune(given.model, given.data, keep=0.8, n_samples=None)
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=8, lora_alpha=16, target_modules=layers, task_type="CAUSAL_LM")
    net = get_peft_model(copy.deepcopy(result.model), config).train()
    optimiser = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=2e-4)
    for _ in range(epochs):
        for batch in given.data:
            net(**batch, labels=batch["input_ids"]).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    merged = net.merge_and_unload().eval()
    for name, one in (("pruned", result.model), ("with adapters merged", merged)):
        found = subprune.evaluate(one, given.test, dense=given.model, context=given.context)
        print(f"{name}\n{found}\n")
    subprune.save(merged, given.output / "adapted.safetensors")


if __name__ == "__main__":
    main(sys.argv[1:])
