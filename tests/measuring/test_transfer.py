"""Index arrays on their way to the device."""

from __future__ import annotations

import numpy as np
import torch

from loopscope.measuring.host_copies import upload


def test_arrays_arrive_as_they_were_and_aligned():
    given = [np.arange(3), np.arange(8).reshape(2, 4), [], [5], np.array([[True, False, True]])]
    sent = upload(given, torch.device("cpu"))
    for tensor, numbers in zip(sent, given, strict=True):
        assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()
        np.testing.assert_array_equal(tensor.numpy(), np.asarray(numbers, dtype=np.int64))
        assert tensor.data_ptr() % 16 == 0
