# %% [markdown]
# # A Hugging Face encoder
#
# Sentence encoders, classifiers, vision transformers: a model from `transformers` is pruned like any other, unpatched.
# So that this page runs in seconds and offline, the model here is a small BERT with random weights; yours comes from
# `from_pretrained`.

# %%
import torch
from transformers import AutoModel, BertConfig, BertModel

import subprune

torch.manual_seed(0)
sizes = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
}
encoder = BertModel(
    BertConfig(vocab_size=300, **sizes)
).eval()  # yours: AutoModel.from_pretrained(…)

# %% [markdown]
# ## Batches as a tokenizer gives them
#
# A list of dicts of keyword arguments. Tokens that the attention mask leaves out count nowhere: not in the fit, and not
# in any figure.

# %%
batches = []
for length in (12, 20, 16, 8):
    mask = torch.ones(16, length, dtype=torch.long)
    mask[:8, length // 2 :] = 0  # half of the sentences are shorter
    batches.append({"input_ids": torch.randint(0, 300, (16, length)), "attention_mask": mask})

print(subprune.inspect(encoder, batches))

# %% [markdown]
# ## Prune the blocks
#
# `of="blocks"` leaves the embeddings out of the count. `uniform=True` gives all layers the same width, so that the
# config can say what the model has become and `from_pretrained` loads it without subprune.

# %%
result = subprune.prune(encoder, batches, params="70%", of="blocks", uniform=True, progress=False)
print(result.report)

# %% [markdown]
# The figure of an encoder is the mean cosine between its vectors before and after, on inputs that nothing was fitted to.
# Here it is close to 1 whatever is removed, since untrained MLPs add little to the stream; what happens to real encoders is
# [measured](../results-transformers.md).
#
# ![The page of an encoder](pictures/encoder.png)
#
# ## Load it anywhere

# %%
result.save_pretrained("smaller")
again = AutoModel.from_pretrained("smaller").eval()
with torch.no_grad():
    one, other = (m(**batches[0]).last_hidden_state for m in (result.model.eval(), again))
assert torch.allclose(one, other, atol=1e-5)
print(type(again).__name__, "with", again.config.intermediate_size, "hidden units in every layer")

# %% [markdown]
# [Transformers](../transformers.md) has the families that were tried, and what their configs can say.
