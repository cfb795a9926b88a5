"""What re-estimating BatchNorm's statistics on 512 images does to networks with nothing pruned.

    python experiments/batchnorm_control.py --data-dir DATA --models-dir MODELS

Writes experiments/results/batchnorm-control.csv: top-1 of the dense ResNet56 and VGG11 as they are,
and with the statistics of 512 training images, augmented as in the grids or plain.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

from subprune.data.batches import batches
from subprune.statistics.batchnorm import recalibrate
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import calibration_batches, load
from subprune.zoo.models import build
from subprune.zoo.weights import load_weights
from subprune_paper.augmentation import augment
from subprune_paper.tables import write_csv

SEED = 42
OUTPUT = Path(__file__).resolve().parent / "results" / "batchnorm-control.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", help="folder of the official CIFAR-10 files")
    parser.add_argument("--models-dir", type=Path, required=True, help="folder of the weights")
    options = parser.parse_args()
    train, test = (load("cifar10", split, options.data_dir) for split in ("train", "test"))
    rows = []
    for name in ("vgg11", "resnet56"):
        dense = build(name)
        load_weights(dense, options.models_dir / f"{name}-cifar10.safetensors")
        dense.eval()
        for statistics in ("of training", "512 augmented images", "512 plain images"):
            model = copy.deepcopy(dense)
            if statistics != "of training":
                change = augment if "augmented" in statistics else None
                data = calibration_batches(train, 512, SEED, augment=change)
                recalibrate(model, batches(data, model, None))
            top1 = 100 * count_correct(model, test) / len(test)
            rows.append(
                {"model": name, "statistics": statistics, "seed": SEED, "top1": round(top1, 2)}
            )
            print(*rows[-1].values(), flush=True)
    write_csv(rows, OUTPUT)


if __name__ == "__main__":
    main()
