"""Cross-entropy and CBMI in Hugging Face's trainer, beside cbmi's own training of the same size.

    python studies/huggingface.py RUN OUT --train F F --test F F [--steps 4000]

RUN is a run of cbmi that has trained a translator and a language model. Two Marian models begin
with the random weights that its translator began with, and are trained with its optimizer, one with
each objective (--objectives ce: with that one alone). Its language model scores the labels, and its
own BLEU on the test set is printed beside. A step has a fixed number of pairs, drawn at random:
those that the run's steps have on average.
OUT/results.csv gets a line as soon as a model is tested, and OUT/OBJECTIVE.txt its translations;
what stands there is not trained again.
A training that was stopped goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from program import run
from pyarrow.compute import list_value_length, mean
from transformers import MarianConfig, MarianMTModel, Seq2SeqTrainingArguments, set_seed

from cbmi.data.text import read_pairs
from cbmi.data.vocabulary import BOS, PAD, Vocabulary
from cbmi.evaluation.metrics import corpus_bleu, corpus_chrf
from cbmi.files import read_json, write_atomically
from cbmi.huggingface import AdaptiveCollator, AdaptiveSeq2SeqTrainer
from cbmi.huggingface.language_model import last_checkpoint
from cbmi.inference.model import TrainedModel
from cbmi.inference.scoring import packed_batches
from cbmi.interop.marian import marian_config, marian_weights
from cbmi.model import shift_right
from cbmi.objectives import build
from cbmi.progress import bar, say
from cbmi.training.networks import new_translator

COLUMNS = ("objective", "steps", "bleu", "chrf")
BEAM = 4
BATCH = 256  # sentences that are translated together


class Tokenizer:
    """What the collator and the trainer ask of one: pieces are those of the run."""

    pad_token_id = PAD
    padding_side = "right"

    def save_pretrained(self, folder: str) -> None:
        """Nothing: the run keeps its vocabulary."""


def rows_of(model: TrainedModel, files: list[str], with_scores: bool) -> Dataset:
    """Ids of the pairs; with scores, log p_LM of every label, too."""
    pairs = list(read_pairs(files, model.languages, Counter()))
    columns: dict[str, list[Any]] = {"input_ids": [], "labels": []}
    language_model = model.language_model() if with_scores else None
    if language_model is not None:
        columns["lm"] = []
    with bar("Encoding", len(pairs), "pairs") as progress:
        for batch, source, target in packed_batches(model, pairs):
            lm: list[float] = []
            if language_model is not None:
                with torch.inference_mode():
                    lm = _log_p(language_model, target).tolist()
            ids = {"input_ids": source, "labels": target}
            sizes = {name: packed.layout.sizes.tolist() for name, packed in ids.items()}
            starts = dict.fromkeys(ids, 0)
            for place in range(len(batch)):
                row: dict[str, Any] = {}
                for name, packed in ids.items():
                    end = starts[name] + sizes[name][place]
                    row[name] = packed.ids[starts[name] : end].tolist()
                    if name == "labels" and lm:
                        row["lm"] = lm[starts[name] : end]
                    starts[name] = end
                if max(len(row["input_ids"]), len(row["labels"])) <= model.config.data.max_length:
                    for name, value in row.items():
                        columns[name].append(value)
            progress.advance(len(batch))
    # Named, since not every Python can pickle a table to make a name of it.
    return Dataset(InMemoryTable.from_pydict(columns), fingerprint="training-pairs")


def _log_p(language_model: Any, target: Any) -> torch.Tensor:
    scores: torch.Tensor = language_model(shift_right(target, BOS), target.ids)[0]
    return scores


def pairs_per_step(data: Dataset, tokens: int) -> int:
    """Of the run, whose steps have at most so many pieces on either side, on average."""
    lengths = [list_value_length(data.data.column(name)) for name in ("input_ids", "labels")]
    return max(1, round(tokens / max(mean(column).as_py() for column in lengths)))


def train(model: TrainedModel, data: Dataset, objective: str, options: Any) -> MarianMTModel:
    set_seed(1)
    folder = options.out / objective
    size = len(model.target)
    shared = model.config.data.vocabulary.shared
    config = MarianConfig(**marian_config(model.translator.shape, size, size, shared))
    network = MarianMTModel(config)
    # The weights that cbmi's own training began with.
    initial = new_translator(model.config, (len(model.source), size), model.config.seed)
    weights = {name: value.detach() for name, value in marian_weights(initial).items()}
    network.load_state_dict(weights, strict=False)
    network.tie_weights()
    optimizer = model.config.optimizer
    trainer = AdaptiveSeq2SeqTrainer(
        network,
        Seq2SeqTrainingArguments(
            output_dir=str(folder),
            max_steps=options.steps,
            per_device_train_batch_size=pairs_per_step(data, model.config.batch.tokens),
            learning_rate=optimizer.peak_lr,
            warmup_steps=optimizer.warmup,
            lr_scheduler_type="linear",
            label_smoothing_factor=model.config.label_smoothing,
            adam_beta1=optimizer.betas[0],
            adam_beta2=optimizer.betas[1],
            adam_epsilon=optimizer.eps,
            max_grad_norm=optimizer.clip,
            bf16=torch.cuda.is_available(),
            save_strategy="steps",
            save_steps=options.save_every,
            save_total_limit=1,
            dataloader_num_workers=2,
            report_to=[],
            logging_steps=200,
        ),
        objective=objective,
        train_dataset=data,
        data_collator=AdaptiveCollator(Tokenizer(), model=network),
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    network.eval()  # type: ignore[no-untyped-call]
    return network


@torch.inference_mode()
def translate(network: MarianMTModel, model: TrainedModel, lines: list[str]) -> list[str]:
    source: Vocabulary = model.source
    sentences = model.encode(source, lines)
    order = sorted(range(len(lines)), key=lambda place: -len(sentences[place]))
    found = [""] * len(lines)
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        longest = max(len(sentences[place]) for place in batch)
        ids = torch.full((len(batch), longest), PAD)
        for row, place in enumerate(batch):
            ids[row, : len(sentences[place])] = torch.tensor(sentences[place])
        ids = ids.to(network.device)
        made = cast(Any, network).generate(
            input_ids=ids,
            attention_mask=(ids != PAD).long(),
            num_beams=BEAM,
            length_penalty=0.6,
            max_new_tokens=2 * longest + 10,
            forced_eos_token_id=None,
        )
        for place, row in zip(batch, made.tolist(), strict=True):
            found[place] = model.target.decode(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", nargs=2, required=True)
    parser.add_argument("--test", nargs=2, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--objectives", default="ce,cbmi")
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.csv"
    known = set()
    if results.exists():
        with open(results, newline="", encoding="utf-8") as file:
            known = {row["objective"] for row in csv.DictReader(file)}
    model = TrainedModel(options.run, precision="fp32")
    wanted = [name for name in options.objectives.split(",") if name not in known]
    with_scores = any("lm" in build({"name": name}, "--objectives").needs() for name in wanted)
    data = rows_of(model, options.train, with_scores)
    test = list(read_pairs(options.test, model.languages, Counter()))
    references = [target for _, target in test]
    for objective in wanted:
        network = train(model, data, objective, options)
        texts = translate(network, model, [source for source, _ in test])
        lines = "".join(f"{text}\n" for text in texts)
        write_atomically(options.out / f"{objective}.txt", lines)
        is_new = not results.exists()
        with open(results, "a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(COLUMNS)
            scores = (corpus_bleu(texts, references), corpus_chrf(texts, references))
            writer.writerow([objective, options.steps, *(f"{score:.3f}" for score in scores)])
        shutil.rmtree(options.out / objective)  # its checkpoints
        say(f"{objective}: BLEU {scores[0]:.2f}, chrF {scores[1]:.2f}")
    own = options.run / "test" / "results.json"
    if own.exists():
        say(f"cbmi itself: {read_json(own)['results']}")


if __name__ == "__main__":
    run(main)
