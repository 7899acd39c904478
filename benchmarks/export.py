"""How fast an exported model translates on a CPU beside its run, and what quantization costs.

    python benchmarks/export.py RUN --source test.en --reference test.de [--threads 1] [--lines N]

Prints a Markdown table: the run in float32, and its CTranslate2 exports in float32 and int8, each
with sentences per second (beam 4, the median of three rounds), BLEU and chrF.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import torch

import cbmi
from cbmi.data.lines import read_lines
from cbmi.evaluation.metrics import bleu_tokenizer, corpus_bleu, corpus_chrf
from cbmi.inference.base import Model
from cbmi.interop.export import ExportSettings, export_run
from cbmi.progress import quiet
from cbmi.reporting.tables import markdown_table

ROUNDS = 3


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lines", type=int, default=None, help="the first so many only")
    return parser.parse_args()


def measure(name: str, model: Model, lines: list[str], references: list[str]) -> list[str]:
    model.translate(lines[:8])  # warm up
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        texts = model.translate(lines)
        seconds.append(time.perf_counter() - begun)
    speed = len(lines) / median(seconds)
    bleu = corpus_bleu(texts, references, bleu_tokenizer(model.languages[1]))
    return [name, f"{speed:.1f}", f"{bleu:.2f}", f"{corpus_chrf(texts, references):.2f}"]


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    lines = list(read_lines(options.source, Counter()))[: options.lines]
    references = list(read_lines(options.reference, Counter()))[: options.lines]
    rows = []
    with tempfile.TemporaryDirectory() as folder, quiet():
        run = cbmi.load(options.run, device="cpu", precision="fp32")
        rows.append(measure("cbmi, float32", run, lines, references))
        for quantization in ("float32", "int8"):
            output = Path(folder) / quantization
            export_run(options.run, output, ExportSettings("ctranslate2", quantization))
            exported = cbmi.load(output, device="cpu")
            name = f"CTranslate2, {quantization}"
            rows.append(measure(name, exported, lines, references))
    print(markdown_table(["", "sentences/s", "BLEU", "chrF"], rows, align="lrrr"))


if __name__ == "__main__":
    main()
