"""docs/results-transformers.md from the rows of experiments/transformers_table.py.

python experiments/transformers_page.py
"""

from __future__ import annotations

import csv
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results-transformers.md"
RESULTS = HERE / "results" / "transformers"

BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->"


def rows(name: str) -> list[dict[str, str]]:
    path = RESULTS / f"{name}.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table(name: str, figure: str) -> list[str]:
    """One line for each variant, one column for each share removed."""
    every = rows(name)
    shares = sorted({float(r["removed"]) for r in every})
    head = " | ".join(f"{s:.0%} removed" for s in shares)
    lines = [f"| variant | {head} | CPU seconds | peak beyond the model |"]
    lines.append("|---" * (len(shares) + 3) + "|")
    for variant in dict.fromkeys(r["variant"] for r in every):
        own = {float(r["removed"]): r for r in every if r["variant"] == variant}
        cells = [_cell(own[s], figure) if s in own else "" for s in shares]
        seconds = max(float(r["cpu_seconds"]) for r in own.values())
        peak = max(float(r["peak_mb_beyond"] or 0) for r in own.values())
        lines.append(f"| {variant} | {' | '.join(cells)} | {seconds:.0f} | {peak:,.0f} MB |")
    return lines


def _cell(row: dict[str, str], figure: str) -> str:
    if figure == "cosine":
        return f"{float(row['cosine']):.4f}"
    return f"{float(row['perplexity']):.1f} ({float(row['ratio']):.2f} ×)"


def main() -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    parts: list[str] = []
    if language := rows("language"):
        first = language[0]
        parts += [
            "## SmolLM2-135M, perplexity on WikiText-2 (times that of the dense model)\n",
            f"Dense: {first['dense']} ({first['protocol']}); calibrated on {first['inputs']} × "
            f"{first['length']} tokens of the first part of the text, seed {first['seed']}.\n",
            *table("language", "perplexity"),
            "",
        ]
    if sentences := rows("sentences"):
        first = sentences[0]
        parts += [
            "## MiniLM-L6, mean cosine with the dense model\n",
            f"{first['protocol']}; calibrated on {first['inputs']} others, seed {first['seed']}.\n",
            *table("sentences", "cosine"),
            "",
        ]
    machines = sorted({r["machine"] for name in ("language", "sentences") for r in rows(name)})
    parts.append(f"Machine: {'; '.join(machines)}.\n")
    PAGE.write_text(f"{before}{BEGIN}" + "\n".join(parts) + f"{END}{after}")


if __name__ == "__main__":
    main()
