"""Adam in the directions that the gradients of a weight have in common.

The start is good and the minutes are few, so what counts is how far one step gets. Adam divides the
gradient of every weight by its usual size, one weight at a time, as if weights knew nothing of each
other. Here the gradient G [rows, columns] of a layer is turned first, to the eigenvectors of the
usual G·Gᵀ and Gᵀ·G (the factors of Shampoo), where its entries have little to do with each other,
and Adam's division happens there: SOAP, by Vyas et al. 2024, arXiv 2409.11321. Vectors, such as
biases and norms, and tables of words get Adam as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Preconditioned"]

_MOMENTUM, _SQUARES = 0.9, 0.95  # how much of what was seen stays, a step
_EVERY = 10  # steps after which the directions are found again: they change slowly
_WIDEST = 1024  # of a side with directions of its own; a wider one is left as it is
_LONGEST = 8192  # of a matrix that is turned: tables of words cost most and gain least
_LEAST = 1e-8


@dataclass
class Side:
    """The directions of one side of a matrix."""

    second: Tensor  # [d, d], the usual G·Gᵀ
    basis: Tensor  # [d, d], orthonormal: its columns are nearly the eigenvectors of `second`

    @classmethod
    def of(cls, gradient: Tensor) -> Side | None:
        """Of the rows of a gradient [d, n]."""
        if len(gradient) > _WIDEST:
            return None
        second = gradient @ gradient.T
        if not second.isfinite().all():  # the training is lost; that is not for here to say
            return None
        return cls(second, torch.linalg.eigh(second.double())[1].to(second.dtype))

    def look(self, gradient: Tensor) -> None:
        self.second.lerp_(gradient @ gradient.T, 1 - _SQUARES)

    def turn(self) -> None:
        """One step of orthogonal iteration, from where the directions were."""
        self.basis = torch.linalg.qr(self.second @ self.basis)[0]


@dataclass
class Memory:
    """What is known of the gradients of one parameter, as a matrix [rows, columns]."""

    left: Side | None
    right: Side | None
    mean: Tensor  # of gradients, as they are
    squares: Tensor  # of gradients, turned

    @classmethod
    def of(cls, gradient: Tensor, vector: bool) -> Memory:
        zeros = torch.zeros_like(gradient)
        sides = (None, None) if vector else (Side.of(gradient), Side.of(gradient.T))
        return cls(*sides, zeros, zeros.clone())

    @property
    def turns(self) -> bool:
        return self.left is not None or self.right is not None

    def direction(self, gradient: Tensor, step: int) -> Tensor:
        """Where to go: the mean gradient, divided by its usual size, both turned."""
        for side, rows in ((self.left, gradient), (self.right, gradient.T)):
            if side is not None:
                side.look(rows)
        self.mean.lerp_(gradient, 1 - _MOMENTUM)
        self.squares.lerp_(self._turned(gradient).square(), 1 - _SQUARES)
        size = (self.squares / (1 - _SQUARES**step)).sqrt_().add_(_LEAST)
        result = self._back(self._turned(self.mean / (1 - _MOMENTUM**step)) / size)
        if step % _EVERY == 0:
            for side in (self.left, self.right):
                if side is not None:
                    side.turn()
        return result

    def _turned(self, x: Tensor) -> Tensor:
        """QₗᵀxQᵣ"""
        x = x if self.left is None else self.left.basis.T @ x
        return x if self.right is None else x @ self.right.basis

    def _back(self, x: Tensor) -> Tensor:
        """QₗxQᵣᵀ"""
        x = x if self.left is None else self.left.basis @ x
        return x if self.right is None else x @ self.right.basis.T


class Preconditioned(torch.optim.Optimizer):
    """Adam in the eigenvectors of Shampoo's factors, for weights of two and more dimensions."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step along the gradients that are there; the first says only where they point."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group["lr"])

    def _move(self, parameter: Tensor, rate: float) -> None:
        assert parameter.grad is not None
        vector = parameter.ndim < 2
        gradient = parameter.grad.reshape(1 if vector else len(parameter), -1)
        vector = vector or max(gradient.shape) > _LONGEST
        state = self.state[parameter]
        if "memory" not in state:
            state["memory"], state["seen"] = Memory.of(gradient, vector), 0
            if state["memory"].turns:
                return  # turned by its own directions it would be a step along rounding errors
        state["seen"] += 1
        direction = state["memory"].direction(gradient, state["seen"])
        parameter.add_(direction.reshape(parameter.shape), alpha=-rate)
