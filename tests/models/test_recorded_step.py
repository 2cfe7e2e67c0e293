"""Steps recorded and played again: where that is done, and, on an accelerator, the same bits as without."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from loopscope.kernels.choice import implementation
from loopscope.models.batch import Batch, Group, pack
from loopscope.models.walk import MOST_WORK, RecordedStep, Walk, can_record
from loopscope.models.walk import forget_recorded_steps as forget

FAMILIES = ["ouro", "huginn", "retrofit_llama", "retrofit_olmo", "nanbeige", "loopus"]
ROWS = [[5, 9, 1, 60, 33, 2, 17], [7, 8, 30, 4], [99]]
GROUPS = [Group([row], 0, number) for number, row in enumerate(ROWS)]
GROUPS += [Group([[1, 2, 3, 4], [1, 2, 5], [1, 2, 6, 7, 8]], 2, 9)]


@torch.no_grad()
def test_nothing_is_recorded_on_a_cpu(golden_model):
    model = golden_model("ouro")
    assert not can_record(model, model.embed(Batch.from_rows(ROWS)), 5)
    assert torch.equal(
        Walk.of(model, Batch.from_rows(ROWS), 5).to(5).state, model.states(Batch.from_rows(ROWS), [5])[5]
    )
    forget()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAnAccelerator:
    @pytest.mark.parametrize("family", FAMILIES)
    @torch.no_grad()
    def test_states_are_the_same_bits(self, golden_model, family):
        model = golden_model(family, dtype=torch.bfloat16).to("cuda")
        for batch in (Batch.from_rows(ROWS, source_rows=[1, 2, 3]), pack(GROUPS, unpadded=True).batch):
            assert can_record(model, model.embed(batch), 6)
            # Twice: the second batch is recorded while the first may still run.
            for _ in range(2):
                walk, plain = Walk.of(model, batch, 6), Walk.of(model, batch)
                found = [walk.advance() for _ in range(6)]
                expected = [plain.advance() for _ in range(6)]
                assert isinstance(walk._recorded, RecordedStep)
                assert walk._recorded._graph is not None
                assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))

    @torch.no_grad()
    def test_only_where_it_pays_and_is_allowed(self, golden_model):
        model = golden_model("ouro", dtype=torch.bfloat16).to("cuda")
        context = model.embed(Batch.from_rows(ROWS))
        assert can_record(model, context, 4)
        assert not can_record(model, context, 3)
        with implementation("reference"):
            assert not can_record(model, context, 4)
        with torch.enable_grad():
            assert not can_record(model, context, 4)
        wide = torch.empty(1, 1 + int(MOST_WORK / 5280**2), 5280, device="cuda", dtype=torch.bfloat16)
        assert not can_record(model, dataclasses.replace(context, state=wide), 4)

    @torch.no_grad()
    def test_memory_does_not_grow_with_batches(self, golden_model):
        model = golden_model("ouro", dtype=torch.bfloat16).to("cuda")

        def held():
            for count in (3, 2, 1, 4):
                Walk.of(model, Batch.from_rows(ROWS * count), 5).to(5)
            torch.cuda.synchronize()
            return torch.cuda.memory_reserved()

        held()
        before = held()
        for _ in range(5):
            after = held()
        assert after <= before + 2**21
        forget()
