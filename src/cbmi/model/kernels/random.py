"""The draws of `cbmi.model.dropout.keep`, for use inside other kernels."""

import triton
import triton.language as tl

from cbmi.model import dropout

ROW = tl.constexpr(dropout.ROW)
SITE = tl.constexpr(dropout.SITE)
COLUMN = tl.constexpr(dropout.COLUMN)
# Numbers that differ from call to call: no variant of a kernel is compiled for some of their
# values.
DROPOUT_ARGUMENTS = ["site", "threshold"]
CHANGING = [*DROPOUT_ARGUMENTS, "rows"]
MIX_0 = tl.constexpr(dropout.MIX[0])
MIX_1 = tl.constexpr(dropout.MIX[1])


@triton.jit
def row_state(seed, site, row):
    """What the draws of a row begin with; `seed`: pointer to two int32.

    Integers wrap around at 32 bits, in Triton as in PyTorch.
    """
    x = _mix(row * ROW + tl.load(seed))
    return _mix(x ^ (tl.load(seed + 1) + site * SITE))


@triton.jit
def kept(state, column, threshold):
    """Whether the entry in this column of the row stays."""
    x = state + column * COLUMN
    x = (x ^ (x >> 16)) * MIX_0
    x = (x ^ (x >> 15)) * MIX_1
    return x >= threshold


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * MIX_0
    x = (x ^ (x >> 15)) * MIX_1
    return x ^ (x >> 16)
