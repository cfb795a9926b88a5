"""How far the paper's VGG11 could shrink without losing anything, by the ranks its own table gives.

    python experiments/vgg11_redundancy.py

The table of submodularity bounds gives rank / (2 · columns) of what the next layer reads (1 at full
rank). If the missing rank is that of whole units, as it is in ResNet56 (docs/guarantees.md), the
share of units that do anything is twice that number. Prints the widths that leaves, and the
compression of the whole network.
"""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path

from subprune.measure.measurements import count_parameters
from subprune.zoo.models import build

TABLE = Path(__file__).resolve().parent / "data" / "paper_gamma_tables.csv"
WIDTHS = {
    "features.0": 64,
    "features.4": 128,
    "features.8": 256,
    "features.11": 256,
    "features.15": 512,
    "features.18": 512,
    "features.22": 512,
    "features.25": 512,
    "classifier.0": 128,
    "classifier.3": 128,
}
RANK_TEST = ("features.0",)
"""Where our network, with all channels alive, has as low a value: the rank test's doing, so all
units are counted.
"""


def parameters(widths: dict[str, int]) -> int:
    """Of a VGG11 with these widths: convolutions with bias and BatchNorm, three linear layers."""
    layers = [3, *(n for name, n in widths.items() if name.startswith("features"))]
    convolutions = sum(9 * a * b + 3 * b for a, b in itertools.pairwise(layers))
    linear = [layers[-1], widths["classifier.0"], widths["classifier.3"], 10]
    return convolutions + sum(a * b + b for a, b in itertools.pairwise(linear))


def main() -> None:
    dense = parameters(WIDTHS)
    assert dense == count_parameters(build("vgg11"))
    lines = [
        line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    ]
    for patches in ("all", "random"):
        widths = dict(WIDTHS)
        for model, kind, layer, value in csv.reader(lines):
            if (model, kind) == ("vgg11", patches) and layer not in RANK_TEST:
                widths[layer] = min(WIDTHS[layer], math.ceil(2 * float(value) * WIDTHS[layer]))
        kept = parameters(widths)
        print(
            f"{patches} patches: {'-'.join(map(str, widths.values()))}: {kept:,} of {dense:,}, {dense / kept:.1f} times"
        )


if __name__ == "__main__":
    main()
