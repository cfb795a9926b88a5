"""The command line answers before anything heavy is imported; the front door opens lazily."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import subprune

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "numpy", "safetensors", "transformers", "matplotlib", "subprune_paper")
RUN = """
import sys
sys.argv = ["subprune", *{words!r}]
from subprune.__main__ import main
try:
    main()
except SystemExit:
    pass
print("HEAVY", *[m for m in {heavy!r} if m in sys.modules])
"""


def imported(code: str, **environment: str) -> tuple[str, list[str]]:
    """What a fresh Python printed, and which heavy modules it then had."""
    import os

    path = [str(ROOT), str(ROOT / "paper")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    said, _, names = (done.stdout + done.stderr).partition("HEAVY")
    assert "HEAVY" in done.stdout, done.stderr
    return said + names.partition("\n")[2], names.partition("\n")[0].split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "inspect"),
        (["--version"], subprune.__version__),
        (["prune", "--help"], "--compression"),
        (["eval", "--help"], "--tokenizer"),
        (["export", "--help"], "--onnx"),
        (["report", "--help"], "--html"),
        (["prun"], "Did you mean 'prune'"),
        (["prune", "--modell", "x"], "--model"),
        (["export", "nowhere", "--model", "lenet-mnist", "--onnx"], "no saved model"),
    ],
    ids=" ".join,
)
def test_help_and_typos_need_no_pytorch(words: list[str], said: str) -> None:
    text, heavy = imported(RUN.format(words=words, heavy=HEAVY))
    assert said in text
    assert heavy == []


@pytest.mark.parametrize(
    ("line", "said"),
    [("subprune pr", "prune"), ("subprune prune --comp", "--compression")],
)
def test_completion_needs_no_pytorch(line: str, said: str) -> None:
    text, heavy = imported(
        RUN.format(words=[], heavy=HEAVY),
        _SUBPRUNE_COMPLETE="complete_bash",
        _TYPER_COMPLETE_ARGS=line,
        COMP_WORDS=line,
        COMP_CWORD=str(len(line.split()) - 1),
    )
    assert said in text
    assert heavy == []


def test_the_package_itself_is_light() -> None:
    text, heavy = imported(
        f"import sys, subprune; print('HEAVY', *[m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert heavy == []
    assert not text.strip()


# ---- the front door ------------------------------------------------------------------------------


def declared() -> dict[str, str]:
    """What type checkers and editors see: name → module."""
    tree = ast.parse((ROOT / "subprune" / "__init__.py").read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    return {
        alias.asname or alias.name: str(line.module)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }


def test_what_editors_see_is_what_is_there() -> None:
    seen = declared()
    assert seen.pop("guarantees") == "subprune"
    assert sorted(seen) == sorted(subprune.__all__)
    for name, home in seen.items():
        assert getattr(subprune, name) is getattr(sys.modules[home], name)
        assert name in dir(subprune)
    assert subprune.guarantees.__name__ == "subprune.guarantees"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'prunne'"):
        _ = subprune.prunne  # type: ignore[attr-defined]


# ---- without the libraries of the command line ---------------------------------------------------

BARE = """
import sys
for name in ("rich", "typer", "click", "tomli", "PIL", "pyarrow", "transformers"):
    sys.modules[name] = None
"""


def test_the_command_line_says_what_it_needs() -> None:
    code = BARE + RUN.format(words=["--help"], heavy=HEAVY).replace(
        "except SystemExit:\n    pass", "except SystemExit as left:\n    print(left.code)"
    )
    text, heavy = imported(code)
    assert "pip install 'subprune[cli]'" in text
    assert "torch" not in heavy


def test_the_library_works_with_pytorch_numpy_and_safetensors_alone(tmp_path: Path) -> None:
    code = (
        BARE
        + f"""
import torch, subprune
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
x = torch.randn(64, 6)
print(subprune.inspect(model, x))
print(subprune.forecast(model, x, keep=0.5, progress=True))
result = subprune.prune(model, x, keep=0.5, progress=True)
print(result.report)
result.report.save_html({str(tmp_path / "r.html")!r})
subprune.save(result, {str(tmp_path / "m.safetensors")!r})
subprune.load(model, {str(tmp_path / "m.safetensors")!r})
print("HEAVY", "torch")
"""
    )
    text, _ = imported(code)
    assert "16     8" in text
    assert (tmp_path / "r.html").stat().st_size > 1000


# What the libraries of the command line need to show any help at all.
PLAIN = """
import typer
app = typer.Typer(rich_markup_mode="rich")
@app.command()
def one(size: int = typer.Option(1, help="A number.")): ...
app(["--help"])
"""


def processor_seconds(command: list[str]) -> tuple[float, str]:
    """CPU seconds, the least of five tries: other work on the machine makes them more."""
    import os
    import resource

    path = [str(ROOT), str(ROOT / "paper")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": "120"}
    spent, text = [], ""
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent), text


def test_help_is_quick_and_shows_examples_as_they_are_typed() -> None:
    """Seconds differ between machines: the measure is a help page of one option, made beside it."""
    plain, _ = processor_seconds([sys.executable, "-c", PLAIN])
    ours, text = processor_seconds([sys.executable, "-m", "subprune", "prune", "--help"])
    assert ours < 3.5 * plain  # 0.5 s where the plain page takes 0.14 s
    assert "\n subprune prune --model net.py:build --data inputs.npz --params 50% --dry-run" in text
    assert "$SUBPRUNE_DATA" in text  # nothing in brackets was taken for markup
    headings = [line for line in text.splitlines() if line.startswith("╭─")]
    goal, reading = (next(i for i, h in enumerate(headings) if w in h) for w in ("Goal", "images"))
    assert goal < reading
