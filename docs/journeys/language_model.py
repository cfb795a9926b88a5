# %% [markdown]
# # A language model
#
# The same for a causal language model: heads and MLP neurons can go, perplexity before and after is measured, and the result
# loads with `from_pretrained`. So that the figures mean something offline, this page first teaches a tiny LLaMA a
# made-up language of 16 words, which takes seconds.

# %%
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import subprune

torch.manual_seed(0)
WORDS = 16
following = torch.rand(WORDS, WORDS, WORDS).pow(8)  # which word follows which two, and how often
following /= following.sum(-1, keepdim=True)


def sentences(count: int, length: int = 24) -> Tensor:
    rows = list(torch.randint(0, WORDS, (2, count)))
    for _ in range(length - 2):
        rows.append(torch.multinomial(following[rows[-2], rows[-1]], 1)[:, 0])
    return torch.stack(rows, 1)


sizes = {
    "hidden_size": 48,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
}
llama = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **sizes))
optimiser = torch.optim.AdamW(llama.parameters(), lr=4e-3)
for _ in range(200):
    words = sentences(32)
    optimiser.zero_grad()
    llama(input_ids=words, labels=words).loss.backward()
    optimiser.step()
llama.eval()

# %% [markdown]
# ## Prune
#
# Calibration data are batches of token numbers, as a tokenizer gives them. Four tenths of the blocks' parameters go;
# embeddings do not count.

# %%
batches = [{"input_ids": sentences(16)} for _ in range(8)]
result = subprune.prune(llama, batches, params="60%", of="blocks", uniform=True, progress=False)
print(result.report)

# %% [markdown]
# ![The page of a language model](pictures/language_model.png)
#
# ## Perplexity on a text of its own
#
# `evaluate` reads one long row of token numbers in windows, here of a sentence each, and prints the protocol with the
# figure.

# %%
text = sentences(100).reshape(-1)
print(subprune.evaluate(result.model, text, dense=llama, context=24))

# %% [markdown]
# ## More accuracy for more time
#
# `recover` trains the pruned model to answer as the dense one does. Real models want minutes.

# %%
recovered = subprune.recover(result, batches, minutes=0.1, progress=False)
print(recovered.recovery)
recovered.save_pretrained("smaller-llama")
again = LlamaForCausalLM.from_pretrained("smaller-llama").eval()
print(subprune.evaluate(again, text, dense=llama, context=24))

# %% [markdown]
# What to expect of real models is in [Transformers](../results-transformers.md); scripts that go on with adapters,
# quantisation or export are [listed here](../transformers.md#what-comes-after).
