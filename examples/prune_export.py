"""Prune a language model and write it as torch.export and ONNX files, each compared with PyTorch.

python examples/prune_export.py FOLDER TEXT
"""

from __future__ import annotations

import sys

from texts import case

import subprune


def main(words: list[str] | None = None, endings: tuple[str, ...] = (".pt2", ".onnx")) -> None:
    given = case("Prune, then export.", words)
    result = subprune.prune(given.model, given.data, keep=0.8, n_samples=None)
    for ending in endings:
        print(subprune.export(result, given.output / f"small{ending}"))


if __name__ == "__main__":
    main(sys.argv[1:])
