"""Random numbers as a pure function of (seed, index, stream), so that nothing else can change a draw.

There is no generator state to lose on preemption or to share with batch-mates. Does not know tokens or requests.
"""

from __future__ import annotations

import secrets

_MASK = 2**64 - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10

_SEQUENCE_SEEDS = _MASK
"""The stream that seeds are derived from; the streams of draws are small numbers."""


def _philox(index: int, key: tuple[int, int]) -> int:
    """First of the four words of Philox4x64-10 at counter (index, 0, 0, 0).

    Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011). In plain integers, because building numpy's
    generator of the same name for a single draw takes five times as long.
    """
    c0, c1, c2, c3 = index & _MASK, 0, 0, 0
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0 = _MULTIPLIERS[0] * c0
        p1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & _MASK, (p0 >> 64) ^ c3 ^ k1, p0 & _MASK
        k0 = (k0 + _WEYL[0]) & _MASK
        k1 = (k1 + _WEYL[1]) & _MASK
    return c0


def uniform(seed: int, index: int, stream: int = 0) -> float:
    """A number in [0, 1), a multiple of 2**-53. `seed`: any 64-bit integer; -1 and 2**64 - 1 are the same seed.

    `stream`: independent numbers for the same (seed, index): 0 is the draw of the output token with that index.
    """
    return (_philox(index, (seed & _MASK, stream)) >> 11) * 2.0**-53


def sequence_seed(request_seed: int | None, sequence_index: int) -> int:
    """The 64-bit seed of one of a request's n sequences.

    Without a request seed, fresh entropy. With one, a function of seed and index alone: sequence 0 is the same for
    every n.
    """
    if request_seed is None:
        return secrets.randbits(64)
    return _philox(sequence_index, (request_seed & _MASK, _SEQUENCE_SEEDS))
