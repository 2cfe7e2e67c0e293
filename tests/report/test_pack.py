import zlib
from base64 import b64decode

import numpy as np
import pytest

from loopscope.report.evaluation_set import KINDS, pack


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_packed_is_unpacked_bit_for_bit(kind, unpack):
    values = np.random.default_rng(1).integers(0, 100, (3, 4)).astype(kind)
    found, said = unpack(pack({"a": values, "b": values[::2]}, {"text": "é\x00\ud7ff"}))
    assert found["a"].tobytes() == values.tobytes()
    assert found["b"].tolist() == values[::2].ravel().tolist()
    assert said == {"text": "é\x00\ud7ff"}


def test_kinds_that_the_page_cannot_read_are_refused():
    with pytest.raises(ValueError, match="column x has type float64"):
        pack({"x": np.zeros(3)})


def test_a_pack_is_raw_deflate_without_any_markup():
    packed = pack({}, {"text": "</script>" * 100})
    assert "<" not in packed
    assert b"</script>" in zlib.decompress(b64decode(packed), -15)
