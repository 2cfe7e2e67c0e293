"""A small GPT as its author wrote it, looped over its blocks."""

import torch
from torch import nn
from torch.nn import functional

import loopscope as ls


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        q, k, v = self.c_attn(self.ln_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Knows nothing of loopscope."""

    def __init__(self, vocabulary=1024, width=16, blocks=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(256, width)
        self.h = nn.ModuleList(Block(width, 2) for _ in range(blocks))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.dropout = nn.Dropout(0.5)


class LoopedGPT(ls.LoopedModule):
    name, boundary = "looped-gpt", "the blocks' output, before the last norm"

    def __init__(self, gpt, softcap=8.0):
        super().__init__()
        self.gpt, self.softcap = gpt, softcap
        self.vocabulary_size, self.hidden_size = gpt.lm_head.weight.shape
        self.trained_depth, self.max_positions, self.tokenizer = 4, 256, "toy-ouro"

    def embed(self, batch):
        self.check_batch(batch)
        batch = batch.to(self.device)
        places = torch.arange(batch.input_ids.shape[1], device=self.device)
        state = self.gpt.dropout(self.gpt.wte(batch.input_ids) + self.gpt.wpe(places))
        return ls.Context(state, batch, injection=state)

    def step(self, state, context):
        state = state + 0.5 * context.injection
        for block in self.gpt.h:
            state = block(state)
        return state

    def readout(self, state, positions=None, dtype=None):
        if positions is not None:
            state = state[positions[:, 0], positions[:, 1]]
        used = self.in_dtype(nn.ModuleList([self.gpt.ln_f, self.gpt.lm_head]), dtype)
        logits = used[1](used[0](state if dtype is None else state.to(dtype)))
        return self.softcap * torch.tanh(logits / self.softcap)


def build(seed=0, softcap=8.0):
    torch.manual_seed(seed)
    return LoopedGPT(GPT(), softcap)


OPTIONS = {"transitions": [1], "unit_size": 1, "device": "cpu"}
