"""Messages that name options of `subprune.prune`, in the words of the command line."""

from __future__ import annotations

import re

from subprune.options import TARGETS

__all__ = ["in_flags"]

_FLAGS = {
    **{name: f"--{name}" for name in TARGETS},
    **{
        name: f"--{name}"
        for name in ("method", "allocate", "epsilon", "patches", "batchnorm", "only", "ignore")
    },
    **{name: f"--{name}" for name in ("reweight", "seed", "ridge", "folds")},
    **{
        name: "--" + name.replace("_", "-")
        for name in ("train_data", "round_to", "n_samples", "data_dir")
    },
    "budgets": "--budget",
    "verify_data": "--verify",
    "time_calls": "--time",
}
_PHRASES = {
    "data_dir (--data-dir)": "--data-dir",
    " (or pass forward= to turn it into one)": "",
    "reweight=False": "--no-reweight",
    "time_calls=False": "--no-time",
    "time_calls=True": "--time",
    "omit time_calls": "omit it",
    ", ".join(TARGETS): ", ".join(_FLAGS[name] for name in TARGETS),
}
_QUOTES = "\"'"
_VALUE = r"""'[^']*'|"[^"]*"|[\w.+-]*[\w%]"""
_BEFORE = r"(?<![\w'\"/.\[-])"  # not inside a path or a name that somebody gave
_WITH_VALUE = re.compile(rf"{_BEFORE}({'|'.join(_FLAGS)})=({_VALUE})?")
_ALONE = re.compile(
    rf"{_BEFORE}({'|'.join(name for name in _FLAGS if '_' in name)})\b(?!['\"/]|\.\w)"
)
_BUDGET_OF = re.compile(rf"{_BEFORE}budgets\[('[^']*')\]")


def in_flags(text: str) -> str:
    """``allocate='error'`` as ``--allocate error``, ``give train_data=`` as ``give --train-data``."""
    for words, flags in _PHRASES.items():
        text = text.replace(words, flags)
    text = _BUDGET_OF.sub(r"--budget of \1", text)
    text = _WITH_VALUE.sub(lambda m: f"{_FLAGS[m[1]]} {(m[2] or '').strip(_QUOTES)}".rstrip(), text)
    return _ALONE.sub(lambda m: _FLAGS[m[1]], text)
