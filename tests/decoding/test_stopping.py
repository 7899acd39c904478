"""The stopping rule, in closed form."""

from __future__ import annotations

import pytest
import torch
from searches import SPECIAL

from cbmi.decoding import SearchSettings
from cbmi.decoding.candidates import is_finished

# (score found, log p of the best that grows, hypotheses ended, length, limit) → finished?
CASES = [
    ((-1.0, -4.0, 1, 2, 10), False),  # ahead as it stands (-2), but it may yet be beaten: -0.4
    ((-1.0, -4.0, 2, 2, 10), True),  # as many have ended as the beam is wide, and none is ahead
    ((-3.0, -4.0, 2, 2, 10), False),  # one that grows is ahead: -2
    ((-0.3, -4.0, 1, 2, 10), True),  # cannot be beaten: -0.4 at best
    ((-torch.inf, -4.0, 0, 10, 10), True),  # at the limit
    ((-torch.inf, -4.0, 0, 9, 10), False),
]


@pytest.mark.parametrize(("case", "expected"), CASES)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_when_a_search_is_over(case, expected, as_tensor):
    found, growing, ended, length, limit = case
    finished = is_finished(
        found=torch.tensor([found]),
        growing=torch.tensor([growing]),
        ended=torch.tensor([ended]),
        length=torch.tensor([length]) if as_tensor else length,
        limits=torch.tensor([limit]),
        settings=SearchSettings(SPECIAL, beam=2, length_penalty=1.0),
    )
    assert finished.tolist() == [expected]
