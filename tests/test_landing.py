"""Where outputs land: what is found, and that it is what the run computes there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from landing_nets import NETS, Blocks, Plain, Rows, Stream, conv, made
from torch import Tensor, nn

import subprune
from subprune.data.batches import batches
from subprune.statistics.arrival import factors, offset, spread
from subprune.statistics.calibration import Calibration
from subprune.statistics.columns import column_map
from subprune.statistics.consumers import consumer_weight
from subprune.structure.groups import Structure
from subprune.structure.landing import Landing, Scaling, Sum

IMAGES, VECTORS = (4, 3, 6, 6), (4, 5)
QUIET: dict[str, Any] = {"progress": False, "time_calls": False}


def structure_of(model: nn.Module, shape: tuple[int, ...]) -> Structure:
    return subprune.find_groups(model.eval(), torch.randn(shape, dtype=torch.float64))


def landing(structure: Structure, layer: str) -> Landing:
    found = next(c.landing for c in structure.layers if c.name == layer)
    assert found is not None
    return found


def steps(found: Landing) -> str:
    return "".join("+" if isinstance(step, Sum) else "·" for step in found.steps)


# ---- what is found -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "shape", "layer", "way", "rectified", "constant", "before"),
    [
        (Plain, IMAGES, "c1", "·", True, "b1.bias", 1),
        (Plain, IMAGES, "head", "", False, "head.bias", 0),  # the model's output
        (lambda: Plain(2), IMAGES, "c2", "·", True, "b2.bias", 1),
        (Blocks, IMAGES, "c2", "·+", True, "b2.bias", 1),
        (Blocks, IMAGES, "c4", "·+", True, "b4.bias", 1),
        (Blocks, IMAGES, "down", "·+", True, "bd.bias", 1),
        (Blocks, IMAGES, "stem", "·", True, "b0.bias", 1),
        (Stream, VECTORS, "down1", "+", False, None, 0),  # a LayerNorm reads the sum
        (lambda: Stream(bias=True), VECTORS, "down2", "+", False, "down2.bias", 0),
        (Stream, VECTORS, "up1", "", False, "up1.bias", 0),
        (Rows, VECTORS, "a", "·", True, "ba.bias", 1),
        (Rows, VECTORS, "b", "·++", True, "bb.bias", 1),
        (Rows, VECTORS, "side", "", False, "side.bias", 0),
    ],
)
def test_layers_land_after_norms_and_sums(
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    layer: str,
    way: str,
    rectified: bool,
    constant: str | None,
    before: int,
) -> None:
    found = landing(structure_of(made(make), shape), layer)
    assert (steps(found), found.rectified) == (way, rectified)
    assert (found.constant, found.before) == (constant, before)


def test_a_shortcut_that_is_made_after_the_layer_says_what_it_needs() -> None:
    structure = structure_of(made(Blocks), IMAGES)
    (early,) = landing(structure, "c2").sums
    (late,) = landing(structure, "c4").sums
    (back,) = landing(structure, "down").sums
    assert early.needs == () == back.needs  # the branch has run before `down`
    kinds = [structure.program.ops[i].kind for i in late.needs]
    assert [("conv" in kind, "norm" in kind) for kind in kinds] == [(True, False), (False, True)]
    assert landing(structure, "c4").value == landing(structure, "down").value


class Small(nn.Module):
    """One hidden layer, and what is done with its reader's output."""

    def __init__(self, after: Callable[[Small, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 5, bias=False)
        self.norm, self.head, self.after = nn.BatchNorm1d(5), nn.Linear(5, 3), after
        self.free = nn.Parameter(torch.randn(5))
        self.whole = nn.Parameter(torch.randn(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.after(self, self.b(F.relu(self.a(x))), x))


@pytest.mark.parametrize(
    ("after", "way", "rectified"),
    [
        (lambda m, z, x: F.relu(z), "", True),
        (lambda m, z, x: F.leaky_relu(z), "", False),
        (lambda m, z, x: F.relu6(z), "", False),
        (lambda m, z, x: F.relu(z) + torch.tanh(F.relu(z)), "", True),  # two readers, both ReLU
        (lambda m, z, x: F.relu(z) + z, "", False),  # two readers
        (lambda m, z, x: F.relu(z + z), "", False),  # no other value is added
        (lambda m, z, x: F.relu(m.norm(z) + torch.tanh(m.norm(z))), "", False),
        (lambda m, z, x: F.relu(torch.add(z, x, alpha=2)), "", False),
        (lambda m, z, x: F.relu(z - x), "", False),
        (lambda m, z, x: F.relu(z + 1.0), "", False),
        (lambda m, z, x: F.relu(z + m.free), "", False),  # another shape
        (lambda m, z, x: F.relu(z + m.whole), "", False),  # a parameter
        (lambda m, z, x: F.relu(z + x[:1]), "", False),
        (lambda m, z, x: F.relu(x + z), "+", True),
        (lambda m, z, x: F.relu((x + z) + z.detach() * 0), "", False),
        (lambda m, z, x: F.relu((x + z) + x), "++", True),
        (lambda m, z, x: F.relu(m.norm(z + x)), "+·", True),
        (lambda m, z, x: F.relu(m.norm(m.norm(z))), "··", True),  # the same norm, twice
        (lambda m, z, x: F.layer_norm(z + x, (5,)), "+", False),
    ],
)
def test_what_follows_a_layer_is_followed_as_far_as_it_is_affine(
    after: Callable[[Small, Tensor, Tensor], Tensor], way: str, rectified: bool
) -> None:
    found = landing(structure_of(made(lambda: Small(after)), VECTORS), "b")
    assert (steps(found), found.rectified) == (way, rectified)


def test_in_place_sums_and_relus_are_ordinary_ones() -> None:
    def after(m: Small, z: Tensor, x: Tensor) -> Tensor:
        z += x
        return F.relu_(z)

    found = landing(structure_of(made(lambda: Small(after)), VECTORS), "b")
    assert (steps(found), found.rectified) == ("+", True)


def test_a_norm_in_training_mode_is_no_scaling() -> None:
    """It measures its own statistics: what it multiplies by depends on the layer."""

    class Measuring(Small):
        def __init__(self) -> None:
            super().__init__(lambda m, z, x: F.relu(m.norm(z)))
            self.norm = nn.BatchNorm1d(5, track_running_stats=False)

    assert steps(landing(structure_of(Measuring().double(), VECTORS), "b")) == ""


@pytest.mark.parametrize("sizes", [(8, 5, 5), (8, 4, 5)])
def test_a_norm_over_another_dimension_is_no_scaling(sizes: tuple[int, ...]) -> None:
    """Linear layers with a sequence: BatchNorm's channels are the positions."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 5, bias=False)
            self.norm, self.head = nn.BatchNorm1d(sizes[1]), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.norm(self.b(F.relu(self.a(x))))))

    found = landing(structure_of(made(Positions), sizes), "b")
    assert (steps(found), found.constant) == ("", None)


class Shared(nn.Module):
    """Two norms with the same bias, by name or as the same module, or apart."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        self.norm, self.head = nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.other = self.norm if how == "module" else nn.BatchNorm1d(5)
        if how == "bias":
            self.other.bias = self.norm.bias

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.a(x)))
        return self.head(F.relu(self.other(self.b(x))))


@pytest.mark.parametrize(("how", "constant"), [("module", 0), ("bias", 0), ("apart", 1)])
def test_a_bias_that_two_norms_share_takes_no_constant(how: str, constant: int) -> None:
    structure = structure_of(made(lambda: Shared(how)), VECTORS)
    for layer, norm in (("a", "norm"), ("b", "other")):
        found = landing(structure, layer)
        assert steps(found) == "·"
        assert found.constant == (f"{norm}.bias" if constant else None)


def test_a_norm_without_parameters_is_a_scaling_without_a_constant() -> None:
    class Bare(Small):
        def __init__(self) -> None:
            super().__init__(lambda m, z, x: F.relu(m.norm(z)))
            self.norm = nn.BatchNorm1d(5, affine=False)

    structure = structure_of(Bare().double(), VECTORS)
    found = landing(structure, "b")
    (step,) = found.steps
    assert isinstance(step, Scaling)
    assert (step.weight, step.bias, found.constant) == (None, None, None)


@pytest.mark.parametrize("norm", [False, True])
def test_a_bias_behind_a_sum_is_not_one_layers_own(norm: bool) -> None:
    """Two layers without a bias are added, and the sum is normed: each would write its constant."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(5, 8)
            self.a, self.b = nn.Linear(8, 5, bias=False), nn.Linear(8, 5, bias=False)
            self.norm = nn.BatchNorm1d(5) if norm else nn.Identity()
            self.head = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.first(x))
            return self.head(F.relu(self.norm(self.a(x) + self.b(x))))

    structure = structure_of(made(Two), VECTORS)
    assert [landing(structure, layer).constant for layer in "ab"] == [None, None]


def test_a_bias_that_is_scaled_has_no_landing() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.bias = nn.Linear(5, 8), nn.Parameter(torch.randn(5))
            self.weight, self.head = nn.Parameter(torch.randn(8, 5)), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.addmm(self.bias, F.relu(self.a(x)), self.weight, beta=2.0)
            return self.head(F.relu(y))

    structure = structure_of(made(Scaled), VECTORS)
    (group,) = [g for g in structure.groups if g.name == "a"]
    assert [c.landing for c in group.consumers] == [None]


# ---- s = a·z + o -------------------------------------------------------------------------------


def affine_sums(m: Small, z: Tensor, x: Tensor) -> Tensor:
    return F.relu(m.norm(m.norm(z + x) + torch.tanh(x)) + x)


CHAINS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{name: (net.make, (4, *net.shape)) for name, net in NETS.items()},
    "biased stream": (lambda: Stream(bias=True), VECTORS),
    "chain": (lambda: Small(affine_sums), VECTORS),
    "transposed": (
        lambda: nn.Sequential(
            conv(3, 6),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * 13 * 13, 3),
        ),
        IMAGES,
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_landing_is_the_product_scaled_plus_the_offset(name: str) -> None:
    make, shape = CHAINS[name]
    model = made(make)
    x = torch.randn(shape, dtype=torch.float64)
    calibration = Calibration.of(model, batches([x, x[:2] + 1], model, None))
    layers = [c for c in calibration.structure.layers if c.landing is not None]
    assert len(layers) > 1
    for consumer in layers:
        found, run = consumer.landing, calibration.start()
        assert found is not None
        run.fuse = None
        run.advance(consumer.use.op)
        ahead = run.fork()
        ahead.advance(found.op + 1)
        mapping = column_map(consumer, run.programs[0], consumer.name)
        for batch in range(2):
            z = mapping.output(
                run.argument(consumer.use.op, batch), consumer_weight(consumer, run.tensors)
            )
            factor = factors(found, run.tensors)
            scaled = z if factor is None else z * spread(factor, found, z.ndim)
            total = scaled + offset(found, run, batch, run.tensors, z)
            torch.testing.assert_close(total, ahead.envs[batch][found.value])
        assert run.position == consumer.use.op


def test_looking_ahead_leaves_the_run_where_it_was() -> None:
    model, x = made(Blocks), torch.randn(IMAGES, dtype=torch.float64)
    calibration = Calibration.of(model, batches([x], model, None))
    consumer = next(c for c in calibration.structure.layers if c.name == "c4")
    assert consumer.landing is not None
    (late,) = consumer.landing.sums
    run = calibration.start()
    run.advance(consumer.use.op)
    before = {value: t.clone() for value, t in run.envs[0].items()}
    first, again = (run.ahead(0, late.needs, late.value) for _ in range(2))
    assert torch.equal(first, again)
    assert run.envs[0].keys() == before.keys()
    assert all(torch.equal(run.envs[0][value], t) for value, t in before.items())
    run.advance(consumer.landing.op)
    torch.testing.assert_close(first, run.envs[0][late.value])


def test_a_shortcut_that_is_changed_in_place_after_the_layer_ends_the_way() -> None:
    """It cannot be made ahead of the run without changing what the run has."""

    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.r = nn.Linear(5, 8), nn.Linear(8, 4), nn.Linear(5, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            r = self.r(x)
            view = r.view(-1)
            z = self.b(F.relu(self.a(x)))
            r.add_(1.0)
            return self.head(F.relu(z + r)) + view.view(-1, 4)[:, :3]

    model, x = made(Changed), torch.randn(100, 5, dtype=torch.float64)
    assert steps(landing(structure_of(model, (100, 5)), "b")) == ""
    result = subprune.prune(model, x, keep=0.6, method="auto", **QUIET)
    plain = subprune.prune(model, x, keep=0.6, **QUIET)
    with torch.no_grad():
        errors = [float((r.model(x) - model(x)).square().sum()) for r in (result, plain)]
    assert errors[0] < 1.5 * errors[1]
