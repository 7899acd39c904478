"""Whether all cases are tried (`make test-faults`) or a few of them (`make test`)."""

from __future__ import annotations

import os

AT_LENGTH = os.environ.get("CBMI_FAULTS") == "long"
