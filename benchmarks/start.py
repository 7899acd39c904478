"""How long a run takes from the start of the command to 100 steps: first with nothing compiled,
then again.

    python benchmarks/start.py RUN.yaml [KEY=VALUE ...]

The data are prepared beforehand. The run keeps its settings, except that it has one stage of 100
steps and no validation. The first start finds no compiled kernels; the second finds those that the
first left behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cbmi.config import read_config
from cbmi.yaml_text import dump_yaml

CBMI = [sys.executable, "-m", "cbmi"]


def write_run_file(path: Path, output: Path, source: str, overrides: list[str]) -> None:
    """The run file `source`, cut down to one stage of 100 steps."""
    values = read_config(source, overrides).plain()
    values["output"] = str(output)
    values["stages"] = [{"name": "start", "objective": "ce", "steps": 100}]
    values["data"]["valid"] = None
    values["data"]["test"] = {}
    path.write_text(dump_yaml(values))


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = folder / "run"
        run_file = folder / "run.yaml"
        write_run_file(run_file, run, sys.argv[1], sys.argv[2:])
        subprocess.run([*CBMI, "prepare", str(run_file)], check=True)
        environment = dict(os.environ)
        environment["TRITON_CACHE_DIR"] = str(folder / "triton")
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        for state in ("nothing compiled", "compiled before"):
            shutil.rmtree(run / "checkpoints", ignore_errors=True)
            start = time.monotonic()
            subprocess.run([*CBMI, "train", str(run_file)], check=True, env=environment)
            seconds = time.monotonic() - start
            print(f"start to 100 steps and a checkpoint, {state}: {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
