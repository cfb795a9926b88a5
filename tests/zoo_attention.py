"""Attention networks of the zoo: heads written in the ways people write them."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FusedAttention(nn.Module):
    """timm's: one projection, viewed as [3, heads, size], softmax by hand."""

    def __init__(self, dim: int, heads: int, *, sdpa: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.sdpa = heads, dim // heads, sdpa
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = ((q * self.head_dim**-0.5) @ k.transpose(-2, -1)).softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, -1))


class ChunkAttention(nn.Module):
    """nanoGPT's: one projection, split in three, causal mask from a buffer."""

    def __init__(self, dim: int, heads: int, length: int) -> None:
        super().__init__()
        self.n_head, self.head_size = heads, dim // heads
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer(
            "bias", torch.tril(torch.ones(length, length)).view(1, 1, length, length)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (
            y.view(b, t, self.n_head, self.head_size).transpose(1, 2)
            for y in self.c_attn(x).chunk(3, dim=-1)
        )
        att = (q @ k.transpose(-2, -1)) * self.head_size**-0.5
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf")).softmax(-1)
        return self.c_proj((att @ v).transpose(1, 2).reshape(b, t, -1))


class GroupedQueryAttention(nn.Module):
    """Several query heads share a key-value head; one of them: multi-query."""

    def __init__(self, dim: int, heads: int, kv_heads: int, *, repeat: str = "interleave") -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.size, self.repeat = (
            heads,
            kv_heads,
            dim // heads,
            repeat,
        )
        self.q, self.o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k, self.v = (nn.Linear(dim, kv_heads * self.size) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, -1, self.size).transpose(1, 2)
        k, v = (f(x).view(b, t, -1, self.size).transpose(1, 2) for f in (self.k, self.v))
        if self.repeat == "interleave":
            times = q.shape[1] // k.shape[1]
            k, v = (y.repeat_interleave(times, dim=1) for y in (k, v))
        elif self.repeat == "gqa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.o(y.transpose(1, 2).reshape(b, t, -1))
        att = (q @ k.transpose(-2, -1) * self.size**-0.5).softmax(-1)
        return self.o((att @ v).transpose(1, 2).reshape(b, t, -1))


class EinsumAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)) for f in (self.q, self.k, self.v))
        att = torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)
        return self.o(torch.einsum("bhqk,bkhd->bqhd", att, v).flatten(2))


class GatedMLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(dim, hidden),
            nn.Linear(dim, hidden),
            nn.Linear(hidden, dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class FusedGatedMLP(nn.Module):
    """Gate and up in one layer, taken apart by chunk."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.up(x).chunk(2, dim=-1)
        return self.down(F.gelu(a) * b)


class RMSNorm(nn.Module):
    """As LLaMA's code writes it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    """Pre-norm residual block around any mixer and MLP."""

    def __init__(
        self, dim: int, mixer: nn.Module, mlp: nn.Module, norm: type[nn.Module] = nn.LayerNorm
    ) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mixer, self.mlp = norm(dim), norm(dim), mixer, mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Language(nn.Module):
    """Embedding, blocks, norm, head; tied on request."""

    def __init__(self, blocks: list[nn.Module], dim: int = 12, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(20, dim), nn.Parameter(torch.randn(1, 6, dim))
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 20, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.position[:, : ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention` between linear layers."""

    def __init__(
        self, *, batch_first: bool, need_weights: bool, other: int | None = None, **options: bool
    ) -> None:
        super().__init__()
        self.need_weights, self.other = need_weights, other
        self.inp = nn.Linear(5, 8)
        self.attn = nn.MultiheadAttention(
            8, 4, batch_first=batch_first, kdim=other, vdim=other, **options
        )
        self.out = nn.Linear(8, 3)
        if other is not None:
            self.memory = nn.Linear(5, other)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y = self.inp(x)
        m = y if self.other is None else self.memory(x)
        z, w = self.attn(y, m, m, need_weights=self.need_weights)
        return (self.out(z + y), w) if self.need_weights else self.out(z + y)


class EncoderDecoder(nn.Module):
    def __init__(self, norm_first: bool = False) -> None:
        super().__init__()
        self.inp = nn.Linear(5, 8)
        options = {"batch_first": True, "norm_first": norm_first}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, **options), 1, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12, **options), 1)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.out(self.decoder(self.inp(y), self.encoder(self.inp(x))))


class WindowAttention(nn.Module):
    """Swin's: windows by views, a learned table of relative positions with a column for every head."""

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.num_heads, self.window = heads, window
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads))
        self.register_buffer(
            "index", torch.randint(0, (2 * window - 1) ** 2, (window**2, window**2))
        )
        self.scale = (dim // heads) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        s = self.window
        x = torch.roll(x, (-1, -1), (1, 2))
        y = x.view(b, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)
        n = y.shape[0]
        q, k, v = (
            self.qkv(y).reshape(n, s * s, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        )
        bias = self.table[self.index.view(-1)].view(s * s, s * s, -1).permute(2, 0, 1).contiguous()
        y = ((q * self.scale) @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(-1) @ v
        y = self.proj(y.transpose(1, 2).reshape(n, s * s, -1))
        y = y.view(b, h // s, w // s, s, s, -1).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, -1)
        return torch.roll(y, (1, 1), (1, 2))


class PatchMerging(nn.Module):
    """Four neighbours side by side, then a linear layer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * dim), nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[:, i::2, j::2, :] for j in (0, 1) for i in (0, 1)]
        return self.reduction(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 6, 2, stride=2)
        self.block1 = Block(6, WindowAttention(6, 3, 2), FusedGatedMLP(6, 8))
        self.merge = PatchMerging(6)
        self.block2 = Block(12, WindowAttention(12, 3, 2), GatedMLP(12, 8))
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block1(self.patch(x).permute(0, 2, 3, 1))
        return self.head(self.block2(self.merge(y)).mean((1, 2)))


class VisionTransformer(nn.Module):
    """Class token and positions as parameters; the token is picked at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.token, self.position = (
            nn.Parameter(torch.randn(1, 1, 8)),
            nn.Parameter(torch.randn(1, 10, 8)),
        )
        self.blocks = nn.Sequential(
            *[Block(8, FusedAttention(8, 4), FusedGatedMLP(8, 6)) for _ in range(2)]
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), y], 1) + self.position
        return self.head(self.norm(self.blocks(y))[:, 0])


class LinearAttention(nn.Module):
    """No softmax: positive features, summed over; removed features must not count as ones."""

    def __init__(self, dim: int, features: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, features), nn.Linear(dim, features)
        self.v, self.o = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        y = q @ (k.transpose(-1, -2) @ v)
        scale = (q * k.sum(1, keepdim=True)).sum(-1, keepdim=True)
        return self.o(y / scale)


class NonLocal(nn.Module):
    """One head over the pixels of an image, 1×1 convolutions as projections."""

    def __init__(self, c: int, inner: int) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(c, inner, 1) for _ in range(3))
        self.out = nn.Conv2d(inner, c, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        q, k, v = (f(x).flatten(2) for f in (self.theta, self.phi, self.g))
        att = (q.transpose(1, 2) @ k).softmax(-1)
        return x + self.out((v @ att.transpose(1, 2)).view(n, -1, h, w))


class LearnedQueries(nn.Module):
    """Perceiver-like: parameters ask, the input answers; rotary positions on queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, 8))
        self.inp = nn.Linear(5, 8)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 3)
        self.register_buffer("angles", torch.rand(6, 2))

    def rotate(self, x: Tensor) -> Tensor:
        angles = self.angles[: x.shape[-2]]
        a, b = x[..., :2], x[..., 2:]
        return torch.cat(
            [a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.inp(x)
        z = self.latents.expand(x.shape[0], -1, -1)
        q, k, v = (
            f(t).unflatten(-1, (-1, 4)).transpose(1, 2)
            for f, t in ((self.q, z), (self.k, y), (self.v, y))
        )
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v)
        return self.head((z + self.o(y.transpose(1, 2).flatten(2))).amax(1))


class SlicedAttention(nn.Module):
    """Phi-3's: queries, keys and values are slices of one projection, at places that the
    configuration gives.
    """

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(heads=heads, kv_heads=kv_heads)
        self.head_dim = dim // heads
        self.qkv_proj = nn.Linear(dim, (heads + 2 * kv_heads) * self.head_dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.qkv_proj(x)
        first, size = self.config.heads * self.head_dim, self.config.kv_heads * self.head_dim
        parts = qkv[..., :first], qkv[..., first : first + size], qkv[..., first + size :]
        q, k, v = (y.view(b, n, -1, self.head_dim).transpose(1, 2) for y in parts)
        k, v = (y.repeat_interleave(self.config.heads // self.config.kv_heads, 1) for y in (k, v))
        y = (q @ k.transpose(2, 3) * self.head_dim**-0.5).softmax(-1) @ v
        return self.o_proj(y.transpose(1, 2).reshape(b, n, -1))


class SlopedAttention(nn.Module):
    """Bloom's: [heads, 3, size] in one projection, and a fixed slope over the positions for every
    head.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, dim // heads
        self.query_key_value, self.dense = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        fused = self.query_key_value(x).view(b, n, self.num_heads, 3, self.head_dim)
        q, k, v = (fused[..., i, :].transpose(1, 2).reshape(-1, n, self.head_dim) for i in range(3))
        slopes = torch.tensor([2.0**-i for i in range(self.num_heads)])
        slope = (slopes[None, :, None] * torch.arange(n)).expand(b, -1, -1).reshape(-1, 1, n)
        scores = slope.baddbmm(q, k.transpose(1, 2), beta=1.0, alpha=self.head_dim**-0.5)
        scores = scores.view(b, self.num_heads, n, -1) + torch.ones(n, n).triu(1) * -1e4
        y = scores.softmax(-1).view(-1, n, n) @ v
        y = y.view(b, self.num_heads, n, self.head_dim).permute(0, 2, 1, 3)
        return self.dense(y.reshape(b, n, self.num_heads * self.head_dim))


class LocatedAttention(nn.Module):
    """SAM's: heads inside the batch, and queries that ask tables of rows and columns for relative
    positions.
    """

    def __init__(self, dim: int, heads: int, height: int, width: int) -> None:
        super().__init__()
        self.num_attention_heads, self.shape = heads, (height, width)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.rows = nn.Parameter(torch.randn(2 * height - 1, dim // heads))
        self.columns = nn.Parameter(torch.randn(2 * width - 1, dim // heads))
        self.scale = (dim // heads) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        (b, n, _), (h, w), heads = x.shape, self.shape, self.num_attention_heads
        qkv = self.qkv(x).reshape(b, n, 3, heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, b * heads, n, -1).unbind(0)
        places = [torch.arange(i)[:, None] - torch.arange(i)[None, :] + i - 1 for i in (h, w)]
        grid = q.reshape(b * heads, h, w, -1)
        by_row = torch.einsum("bhwc,hkc->bhwk", grid, self.rows[places[0]])
        by_column = torch.einsum("bhwc,wkc->bhwk", grid, self.columns[places[1]])
        bias = by_row[:, :, :, :, None] + by_column[:, :, :, None, :]
        a = ((q * self.scale) @ k.transpose(-2, -1) + bias.reshape(b * heads, n, n)).softmax(-1)
        y = (a @ v).view(b, heads, h, w, -1).permute(0, 2, 3, 1, 4).reshape(b, n, -1)
        return self.proj(y)
