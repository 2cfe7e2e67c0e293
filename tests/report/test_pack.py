import zlib
from base64 import b64decode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from loopscope.report.pack import pack, unpack


@given(arrays.arrays("<f4", st.integers(0, 50), elements=st.floats(width=32)), st.text())
def test_what_is_packed_is_unpacked_bit_for_bit(values, text):
    found, said = unpack(pack({"values": values}, {"text": text}))
    assert found["values"].tobytes() == values.tobytes()
    assert said == {"text": text}


@pytest.mark.parametrize("kind", ["f4", "i4", "u4", "u2", "i1", "u1"])
def test_every_kind_survives(kind):
    values = np.arange(12).astype(kind).reshape(3, 4)
    found, _ = unpack(pack({"a": values, "b": values[::2]}))
    assert found["a"].tolist() == values.ravel().tolist()
    assert found["b"].tolist() == values[::2].ravel().tolist()


def test_kinds_that_the_page_cannot_read_are_refused():
    with pytest.raises(ValueError, match="column x has type float64"):
        pack({"x": np.zeros(3)})


def test_a_pack_is_raw_deflate_without_any_markup():
    packed = pack({}, {"text": "</script>" * 100})
    assert "<" not in packed
    assert b"</script>" in zlib.decompress(b64decode(packed), -15)


def test_transposed_bytes_compress_better():
    values = np.linspace(0.1, 0.2, 5000, dtype=np.float32)
    plain = len(zlib.compress(values.tobytes(), 7))
    assert len(pack({"values": values})) * 3 / 4 < 0.8 * plain
