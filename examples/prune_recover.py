"""Prune a language model, then let the dense one teach the smaller one; no labels.

python examples/prune_recover.py FOLDER TEXT
"""

from __future__ import annotations

import sys

from texts import case

import subprune


def main(words: list[str] | None = None, minutes: float = 15) -> None:
    given = case("Prune, then recover.", words)
    result = subprune.prune(given.model, given.data, keep=0.8, n_samples=None)
    better = subprune.recover(result, given.data, minutes=minutes)
    for name, net in (("pruned", result.model), ("recovered", better.model)):
        found = subprune.evaluate(net, given.test, dense=given.model, context=given.context)
        print(f"{name}\n{found}\n")
    subprune.save(better, given.output / "recovered.safetensors")


if __name__ == "__main__":
    main(sys.argv[1:])
