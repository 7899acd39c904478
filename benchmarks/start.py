"""From the start of the command to 100 steps done: with nothing compiled yet, and again.

    python benchmarks/start.py RUN.yaml [KEY=VALUE ...]

The data are prepared beforehand; the run keeps its settings, but has one stage of 100 steps and validates nothing.
The first time uses empty folders for compiled kernels, the second what the first has left there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cbmi.config import read_run_file
from cbmi.yaml_text import dump_yaml


def main() -> None:
    values = read_run_file(sys.argv[1], sys.argv[2:]).plain()
    values["stages"] = [{"name": "start", "objective": "ce", "steps": 100}]
    values["data"] |= {"valid": None, "test": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values["output"] = str(folder / "run")
        (folder / "run.yaml").write_text(dump_yaml(values))
        command = [sys.executable, "-m", "cbmi"]
        subprocess.run([*command, "prepare", str(folder / "run.yaml")], check=True)
        caches = {"TRITON_CACHE_DIR": str(folder / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        for what in ("nothing compiled", "compiled before"):
            shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
            begun = time.monotonic()
            subprocess.run([*command, "train", str(folder / "run.yaml")], check=True, env=os.environ | caches)
            print(f"start to 100 steps and a checkpoint, {what}: {time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
