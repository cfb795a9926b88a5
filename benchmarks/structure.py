"""Time and memory of structure discovery, each case in a fresh process: ``python
benchmarks/structure.py``.

The LLaMA-7B-shaped model lives on the meta device: no weight of it is ever in memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

CASES = ("resnet56", "llama-7b")
LIMITS = {"resnet56": (2.0, 1.0), "llama-7b": (15.0, 1.0)}  # seconds, extra GB


def build(case: str) -> tuple[Any, Any]:
    """The model and an example input."""
    import torch

    if case == "resnet56":
        from subprune.zoo.models import build as build_model

        return build_model("resnet56"), torch.randn(2, 3, 32, 32)
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(attn_implementation="sdpa"))
    ids = torch.zeros(1, 128, dtype=torch.long)
    return model, {"input_ids": ids, "use_cache": False}


def peak() -> float:
    """Peak resident memory so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def measure(case: str) -> dict[str, Any]:
    """Find the groups of one case twice. PyTorch's own lazy imports (its compiler) are timed apart."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from subprune.structure.analysis import find_groups

    model, example = build(case)
    start = time.perf_counter()
    FakeTensorMode()
    imports = time.perf_counter() - start
    before = peak()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        structure = find_groups(model, example)
        seconds.append(time.perf_counter() - start)
    return {
        "case": case,
        "imports": imports,
        "first": seconds[0],
        "second": seconds[1],
        "extra_gb": peak() - before,
        "groups": len(structure),
        "operations": len(structure.program.ops),
    }


def run(case: str) -> dict[str, Any]:
    """`measure` in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, case], check=True, capture_output=True, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    for case in CASES:
        r = run(case)
        limit = LIMITS[case]
        verdict = "ok" if r["first"] <= limit[0] and r["extra_gb"] <= limit[1] else "TOO MUCH"
        print(
            f"{case:10} {r['groups']:4} groups {r['operations']:6} operations   first {r['first']:.2f} s   "
            f"again {r['second']:.2f} s   (torch's own imports before: {r['imports']:.2f} s)   "
            f"+{r['extra_gb']:.2f} GB   limit {limit[0]:.0f} s, {limit[1]:.0f} GB: {verdict}"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
