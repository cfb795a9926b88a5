"""A network that answers thousands of images: in ONNX Runtime where it is installed.

It folds BatchNorm and chooses its own layout of the maps, which takes half the time here. The file
is compared with the model itself first; where they differ by more than rounding, or something is
missing, the model answers.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

__all__ = ["quick"]

Answer = Callable[[Tensor], Tensor]

ROUNDING = 1e-4  # of the largest output


def quick(model: nn.Module, example: Tensor) -> Answer:
    """[N, 3, H, W] → [N, classes], as the model gives them, but for rounding."""

    def plain(x: Tensor) -> Tensor:
        with torch.no_grad():
            output: Tensor = model(x)
        return output

    try:
        session = _session(model, example)
    except ImportError:
        return plain
    expected, given = plain(example), session(example)
    with torch.no_grad():
        apart = float((expected - given).abs().max() / expected.abs().max())
    return session if apart < ROUNDING else plain


def _session(model: nn.Module, example: Tensor) -> Answer:
    """The model in ONNX Runtime, with as many threads as PyTorch uses here."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(folder) / "model.onnx"
        axes = {"x": {0: "n"}, "y": {0: "n"}}
        torch.onnx.export(
            model,
            (example,),
            file,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes=axes,
            dynamo=False,
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(
            file.read_bytes(), options, providers=["CPUExecutionProvider"]
        )

    def answer(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])

    return answer
