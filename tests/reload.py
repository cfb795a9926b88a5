"""Loads folders with plain transformers, in a process of its own, and writes down the outputs.

python reload.py folder …: each holds a model, ``class.txt`` and ``inputs.pt`` (plain tensors).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file


def main() -> None:
    for place in map(Path, sys.argv[1:]):
        kind = getattr(transformers, (place / "class.txt").read_text())
        model = kind.from_pretrained(place / "model").eval()
        inputs = load_file(place / "inputs.safetensors")
        with torch.no_grad():
            outputs = model(**inputs).to_tuple()
        floats = [x for x in outputs if isinstance(x, torch.Tensor) and x.is_floating_point()]
        save_file({str(i): x.contiguous() for i, x in enumerate(floats)}, place / "out.safetensors")
    assert not any(name.split(".")[0] == "subprune" for name in sys.modules)


if __name__ == "__main__":
    main()
