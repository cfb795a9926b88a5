"""`nn.MultiheadAttention` with fewer heads than its width suggests."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["NarrowMultiheadAttention"]


class NarrowMultiheadAttention(nn.MultiheadAttention):
    """PyTorch's module derives the head size from ``embed_dim / num_heads``; this one keeps it.

    Parameters, names and the call are those of `nn.MultiheadAttention`. Made from one by `adopt`.
    """

    @classmethod
    def adopt(cls, module: nn.MultiheadAttention) -> None:
        """Turn the module into this class, in place,
        and read the number of heads from its weights.
        """
        m: Any = module
        inner = m.out_proj.weight.shape[1]
        m.num_heads = inner // m.head_dim
        m.embed_dim = m.out_proj.weight.shape[0]
        m.out_proj.in_features, m.out_proj.out_features = inner, m.embed_dim
        # keeps nn.TransformerEncoderLayer from its fused path, which knows one size
        m._qkv_same_embed_dim = False
        m.__class__ = cls

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        return q, k, v

    def _extend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One more position for the learned bias of keys and values, and one of zeros, where asked
        for.
        """
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                torch.cat([x, b.expand(x.shape[0], -1, -1)], 1)
                for x, b in ((k, self.bias_k), (v, self.bias_v))
            )
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return q, k, v

    def _heads(self, x: Tensor) -> Tensor:
        """[batch, length, heads · size] → [batch, heads, length, size]"""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `nn.MultiheadAttention.forward`."""
        # All that follows is on [batch, length, features].
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (self._heads(x) for x in self._extend(*self._project(query, key, value)))
        bias = self._bias(q, k, key_padding_mask, attn_mask)  # [batch, heads, length, length]
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5
            weights = torch.softmax(scores if bias is None else scores + bias, dim=-1)
            mixed = F.dropout(weights, dropout) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, bias, dropout)
        out = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if not batched:
            out = out.squeeze(0)
        elif not self.batch_first:
            out = out.transpose(0, 1)
        if not need_weights:
            return out, None
        shown = weights.mean(dim=1) if average_attn_weights else weights
        return out, shown if batched else shown.squeeze(0)

    def _bias(
        self, q: Tensor, k: Tensor, padding: Tensor | None, mask: Tensor | None
    ) -> Tensor | None:
        """Both masks as one tensor that is added to the scores [batch, heads, length, length]."""
        total: Tensor | None = None
        if mask is not None:
            total = _additive(mask, q.dtype)
            if total.dim() == 3:
                total = total.reshape(q.shape[0], -1, *total.shape[1:])
        if padding is not None:
            extra = _additive(padding, q.dtype)[:, None, None, :]
            total = extra if total is None else total + extra
        more = int(self.bias_k is not None) + int(self.add_zero_attn)
        return total if total is None or not more else F.pad(total, (0, more))


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(
            mask, float("-inf")
        )
    return mask.to(dtype)
