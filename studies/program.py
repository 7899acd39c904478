"""How the programs of this folder end: what a user can mend is one sentence, and exit status 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from cbmi.errors import UserError


def run(main: Callable[[], None]) -> None:
    """Call a program's `main`, and report what it refuses, or cannot read, under its name."""
    try:
        main()
    except UserError as error:
        _refuse(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        _refuse(f"{error.filename}: {error.strerror}.")


def _refuse(sentence: str) -> None:
    print(f"{Path(sys.argv[0]).stem}: {sentence}", file=sys.stderr)
    sys.exit(2)
