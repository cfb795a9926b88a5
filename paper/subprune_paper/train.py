"""Train one of the paper's networks: `python -m subprune_paper.train lenet --data-dir …
--output …`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from subprune.errors import DataError, SubpruneError
from subprune.zoo.correct import count_correct
from subprune.zoo.datasets import Images, load
from subprune.zoo.weights import save_weights
from subprune_paper.training import Epoch, TrainingRecipe, recipe, recipe_names, train

__all__ = ["main", "metadata"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, train, measure on the test images and save; returns the exit code."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=True)
    try:
        plan = _plan(options)
        output = _checked_output(options.output)
        images = load(plan.dataset, "train", options.data_dir)
        test = load(plan.dataset, "test", options.data_dir)
        with _progress(console, plan) as on_epoch:
            model, history = train(plan, images, options.seed, on_epoch)
        correct = count_correct(model, test)
        save_weights(model, output, metadata(plan, options.seed, history, correct, test))
    except (SubpruneError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; nothing was written.", file=sys.stderr)
        return 130
    print(
        f"{output}: {correct} of {len(test)} test images right ({100 * correct / len(test):.2f}%)"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m subprune_paper.train", description=__doc__)
    parser.add_argument("model", help=f"one of: {', '.join(recipe_names())}")
    parser.add_argument("--output", type=Path, required=True, help="the .safetensors file to write")
    parser.add_argument(
        "--data-dir", type=Path, help="folder of the data sets (default: $SUBPRUNE_DATA)"
    )
    parser.add_argument(
        "--dataset", help='another data set than the recipe\'s, such as "mnist-sample"'
    )
    parser.add_argument(
        "--epochs", type=int, help="fewer or more epochs; learning-rate drops move along"
    )
    parser.add_argument("--seed", type=int, default=42, help="default: %(default)s")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16 (autocast)")
    layout = argparse.BooleanOptionalAction
    parser.add_argument(
        "--channels-last", action=layout, default=True, help="memory layout while training"
    )
    return parser


def _plan(options: argparse.Namespace) -> TrainingRecipe:
    """The named recipe with the options applied."""
    plan = recipe(options.model)
    plan = plan if options.epochs is None else plan.shortened(options.epochs)
    return dataclasses.replace(
        plan,
        dataset=options.dataset or plan.dataset,
        bfloat16=options.bfloat16,
        channels_last=options.channels_last,
    )


def _checked_output(output: Path) -> Path:
    """Refuse before the training, not after it, a place that cannot be written to."""
    if output.suffix != ".safetensors" or output.is_dir():
        raise DataError(f"--output is {output}; it must be a file whose name ends in .safetensors.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the folder of --output {output} cannot be made ({error}); choose another."
        ) from error
    if not os.access(output.parent, os.W_OK):
        raise DataError(f"the folder of --output {output} cannot be written to; choose another.")
    return output


def metadata(
    plan: TrainingRecipe, seed: int, history: list[Epoch], correct: int, test: Images
) -> dict[str, str]:
    """What is written with the weights, all as text: how they were made and what they reach."""
    return {
        "format": "subprune-weights-1",
        "model": plan.model,
        "dataset": plan.dataset,
        "recipe": json.dumps(dataclasses.asdict(plan), sort_keys=True),
        "seed": str(seed),
        "loop": history[-1].loop,
        "final_train_loss": f"{history[-1].loss:.6g}",
        "test_correct": str(correct),
        "test_images": str(len(test)),
        "test_accuracy": f"{100 * correct / len(test):.2f}",
        "torch": torch.__version__,
    }


@contextmanager
def _progress(console: Console, plan: TrainingRecipe) -> Iterator[Callable[[Epoch], None]]:
    """A bar in a terminal; one line per epoch anywhere else."""
    if not console.is_terminal:
        yield lambda epoch: console.print(_line(epoch, plan), highlight=False)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"training {plan.model}", total=plan.epochs)
        yield lambda epoch: bar.update(
            task, advance=1, description=f"{plan.model} loss {epoch.loss:.4f}"
        )


def _line(epoch: Epoch, plan: TrainingRecipe) -> str:
    return f"epoch {epoch.number}/{plan.epochs}  loss {epoch.loss:.5f}  {epoch.seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
