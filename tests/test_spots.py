"""Layers of large maps, looked at in some places of each image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from views import setting_of

import subprune
from subprune.data.batches import batches
from subprune.loop.tour import Tour
from subprune.statistics import spots
from subprune.statistics.calibration import Calibration
from subprune.statistics.patches import Convolution
from subprune.statistics.residual import Residual
from subprune.statistics.spots import Spots


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(1, 1, 0), (3, 1, 1), (3, 2, 1), (1, 2, 0)]
)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_rows_give_the_outputs_at_the_same_places(
    kernel: int, stride: int, padding: int, last: bool
) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(5, 7, kernel, stride, padding, bias=False).double()
    x = torch.randn(4, 5, 9, 8, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    y = conv(x)
    some = Spots.drawn(Convolution.of(conv), y.shape, 6, 3, "conv")
    rows, values = some.rows(x), some.at(y)
    assert rows.shape == (24, 5, kernel, kernel)
    assert values.shape == (24, 7, 1, 1)
    torch.testing.assert_close(rows.flatten(1) @ conv.weight.flatten(1).T, values.flatten(1))


def test_places_are_different_ones_of_every_image_and_the_same_again() -> None:
    conv = Convolution.make((1, 1))
    shape = torch.Size((3, 2, 4, 5))
    some = Spots.drawn(conv, shape, 7, 0, "a", "0")
    places = torch.stack(some.index, 1)
    assert len(places.unique(dim=0)) == 21
    assert some.index[0].bincount().tolist() == [7, 7, 7]
    again, other = (
        Spots.drawn(conv, shape, 7, 0, "a", "0"),
        Spots.drawn(conv, shape, 7, 0, "b", "0"),
    )
    assert torch.equal(torch.stack(again.index), torch.stack(some.index))
    assert not torch.equal(torch.stack(other.index), torch.stack(some.index))


class Block(nn.Module):
    """A stem and a bottleneck, with norms that do something."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.conv1, self.bn1 = nn.Conv2d(12, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv3, self.bn3 = nn.Conv2d(8, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        x = torch.relu(self.bn3(self.conv3(y)) + x)
        return self.fc(x.mean((2, 3)))


def pruned(monkeypatch: pytest.MonkeyPatch, rows: int | None, numbers: int) -> subprune.Result:
    torch.manual_seed(0)
    model = Block()
    x = torch.randn(48, 3, 12, 12)
    model.train()(x)  # statistics of the norms
    monkeypatch.setattr(spots, "NUMBERS", numbers)
    target = Residual(rows=rows)
    return subprune.prune(
        model.eval(), x, keep=0.5, target=target, ridge=1e-4, progress=False, time_calls=False
    )


def test_all_rows_where_they_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, same = pruned(monkeypatch, None, 0), pruned(monkeypatch, 16, 2**27)
    assert whole.plan.kept == same.plan.kept
    expected, given = whole.model.state_dict(), same.model.state_dict()
    assert expected.keys() == given.keys()
    for name in expected:
        assert torch.equal(expected[name], given[name])


def test_some_rows_lead_near_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least rows are seen, and the small model gives about what it gives with all of them."""
    whole, some = pruned(monkeypatch, None, 0), pruned(monkeypatch, 16, 0)
    columns = {"conv1": 8 * 9, "conv2": 8}  # of their readers
    for group, reference in zip(some.plan.groups, whole.plan.groups, strict=True):
        assert reference.rows == 48 * 144
        assert 16 * columns[group.name] <= group.rows < reference.rows / 2
    x = torch.randn(32, 3, 12, 12)
    with torch.no_grad():
        dense, a, b = whole.dense(x), whole.model(x), some.model(x)
    assert (b - dense).square().mean() < 1.5 * (a - dense).square().mean()


def test_statistics_are_those_of_the_rows_at_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs, targets less what the shortcut adds, and targets that move, all by hand."""
    monkeypatch.setattr(spots, "NUMBERS", 0)
    torch.manual_seed(0)
    model = Block().double().eval()
    x = torch.randn(6, 3, 12, 12, dtype=torch.float64)
    calibration = Calibration.of(model, batches([x], model, None))
    tour = Tour(setting_of(calibration), calibration.structure.inner(), pruned=False)
    place = tour.go_to(calibration.structure["conv2"])
    target = Residual(rows=4, rounds=1, metric=False)
    gathered = target.gather(place)
    (reader,) = place.group.reweightable
    tensors = dict(place.current.tensors)
    tensors["conv3.weight"] = 1.3 * tensors["conv3.weight"]
    moved = target.moved(place, gathered, range(8), [tensors])
    assert moved is not None
    inputs, wanted, easier = [], [], []
    for i in range(len(place.current.envs)):
        x, aim = place.current.argument(reader.use.op, i), gathered.aims[reader.use.op][i]
        shape, count = aim.shape, -(-4 * 8 // 6)
        some = Spots.drawn(Convolution.make((1, 1)), shape, count, place.seed, "conv3", str(i))
        with torch.no_grad():
            # In the dense model the landing is the norm's output plus the shortcut.
            normed = model.bn3(model.conv3(x))
            shortcut = aim - normed
            given = model.bn3(1.3 * model.conv3(x)) + shortcut
            shift = model.bn3(torch.zeros_like(normed))
            target_map = aim - shortcut - shift
            moved_map = torch.where(aim < 0, given.clamp(max=0), aim) - shortcut - shift
        inputs.append(some.rows(x).flatten(1))
        wanted.append(some.at(target_map).flatten(1))
        easier.append(some.at(moved_map).flatten(1))
    rows = torch.cat(inputs)
    assert len(rows) == 36
    for found, targets in ((gathered, wanted), (moved, easier)):
        (stats,) = found.statistics
        torch.testing.assert_close(stats.gram, rows.T @ rows)
        torch.testing.assert_close(stats.cross, rows.T @ torch.cat(targets))
        assert stats.energy == pytest.approx(float(torch.cat(targets).square().sum()))
        assert stats.rows == 36
