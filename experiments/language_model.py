"""A real language model with a share of its block parameters removed: perplexity for each budget
rule.

    python experiments/language_model.py FOLDER TEXT [--removed 0.2] [--allocate balanced …]

FOLDER holds a LLaMA-type model that transformers can load, TEXT is WikiText-2's raw test file.
Calibration: sequences drawn from the first 180,000 tokens; perplexity: consecutive windows, without
overlap, from token 180,000 on; no token is in both. Rows go to
experiments/results/language-model/rows.csv.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import torch
from csv_rows import add_row
from torch import Tensor, nn

import subprune

RESULTS = Path(__file__).parent / "results" / "language-model" / "rows.csv"
SPLIT = 180_000  # tokens before it calibrate, tokens from it on test


def tokens(folder: Path, text: Path) -> Tensor:
    """The whole text as one row of token numbers."""
    from transformers import AutoTokenizer

    ids: Tensor = AutoTokenizer.from_pretrained(folder)(
        text.read_text(), return_tensors="pt"
    ).input_ids[0]
    return ids


def calibration(ids: Tensor, count: int, length: int, seed: int) -> list[dict[str, Tensor]]:
    """Sequences from the first part of the text, eight to a batch."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, SPLIT - length, (count,), generator=generator).tolist()
    rows = torch.stack([ids[s : s + length] for s in starts])
    return [{"input_ids": part} for part in rows.split(8)]


@torch.no_grad()
def perplexity(model: nn.Module, ids: Tensor, windows: int, length: int) -> float:
    """Over consecutive windows of the second part of the text; each window predicts all its tokens
    but the first.
    """
    total = 0.0
    for i in range(windows):
        row = ids[SPLIT + i * length : SPLIT + (i + 1) * length][None]
        logits = model(input_ids=row).logits[0, :-1]
        total += float(nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum"))
    return float(torch.tensor(total / (windows * (length - 1))).exp())


def main() -> None:
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--removed", type=float, default=0.2, help="share of the block parameters")
    parser.add_argument("--allocate", nargs="+", default=["balanced", "uniform"])
    parser.add_argument("--only", default=None)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="asym-in-change")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    model.config.use_cache = False
    ids = tokens(args.folder, args.text)
    data = calibration(ids, args.sequences, args.length, args.seed)
    dense = perplexity(model, ids, args.windows, args.context)
    print(f"dense: perplexity {dense:.2f}", flush=True)
    size = sum(p.numel() for p in model.parameters())
    blocks = sum(p.numel() for p in model.model.layers.parameters())
    for rule in args.allocate:
        started = time.perf_counter()
        result = subprune.prune(
            model,
            data,
            params=float(size - args.removed * blocks),
            method=args.method,
            allocate=rule,
            only=args.only,
            n_samples=None,
            seed=args.seed,
            time_calls=False,
        )
        seconds = time.perf_counter() - started
        after = perplexity(result.model, ids, args.windows, args.context)
        least = min(result.plan.groups, key=lambda g: len(g.kept) / g.units)
        row = {
            "model": args.folder.name,
            "removed": args.removed,
            "allocate": rule,
            "only": args.only or "",
            "sequences": args.sequences,
            "length": args.length,
            "windows": args.windows,
            "context": args.context,
            "seed": args.seed,
            "dense": round(dense, 3),
            "perplexity": round(after, 3),
            "ratio": round(after / dense, 3),
            "agreement": round(result.report.agreement, 4),
            "fitted_agreement": round(result.report.fitted.agreement, 4),
            "narrowest": f"{least.name} {len(least.kept)}/{least.units}",
            "seconds": round(seconds),
            "threads": torch.get_num_threads(),
            "machine": f"{platform.machine()}, torch {torch.__version__}",
        }
        print(row, flush=True)
        for note in result.report.notes:
            print("note:", note, flush=True)
        add_row(RESULTS, row)


if __name__ == "__main__":
    main()
