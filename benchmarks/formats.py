"""How fast corpora are read, and with how much memory.

    python benchmarks/formats.py [--megabytes 1000]

Writes a TMX file of that size and the same text as two aligned files, converts each with `cbmi
corpus convert`, and prints a Markdown table: seconds, pairs per second and peak memory.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from cbmi.reporting.tables import markdown_table

SENTENCE = "The quick brown fox jumps over the lazy dog, again and again. " * 2
SIDE = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
UNIT = f'<tu tuid="1">{SIDE.format("en", SENTENCE)}{SIDE.format("de", SENTENCE)}</tu>\n'
# Of its own process, so that the memory is that of the command.
CONVERT = """\
import sys, time
begun = time.perf_counter()
from cbmi.data.convert import convert
from cbmi.progress import quiet
with quiet():
    pairs = convert(sys.argv[1:], ("en", "de"), "out")
status = open("/proc/self/status").read()
peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
print(pairs, time.perf_counter() - begun, int(peak.split()[1]) / 1024)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    count = parser.parse_args().megabytes * 1_000_000 // len(UNIT)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open(folder / "corpus.tmx", "w") as file:
            file.write("<tmx><body>")
            for _ in range(count):
                file.write(UNIT)
            file.write("</body></tmx>")
        for side in ("en", "de"):
            with open(folder / f"corpus.{side}", "w") as file:
                for _ in range(count):
                    file.write(SENTENCE.strip() + "\n")
        for title, files in (("TMX", ["corpus.tmx"]), ("text", ["corpus.en", "corpus.de"])):
            command = [sys.executable, "-c", CONVERT, *files]
            run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
            pairs, seconds, peak = run.stdout.split()
            speed = int(pairs) / float(seconds)
            size = sum((folder / file).stat().st_size for file in files) / 1e6
            cells = [f"{size:,.0f} MB", f"{int(pairs):,}", f"{float(seconds):.0f} s"]
            rows.append([title, *cells, f"{speed:,.0f}", f"{float(peak):.0f} MB"])
    header = ["format", "size", "pairs", "time", "pairs/s", "peak memory"]
    print(markdown_table(header, rows, align="lrrrrr"))


if __name__ == "__main__":
    main()
