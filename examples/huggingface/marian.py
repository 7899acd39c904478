"""Fine-tune a Marian model with CBMI: tokens that depend on the source count more.

    python examples/huggingface/marian.py Helsinki-NLP/opus-mt-en-de \
        --train train.en train.de --valid valid.en valid.de --output marian-cbmi

Any other encoder-decoder model that needs no language codes works as well: T5, Bart.
"""

import argparse
from pathlib import Path

from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Seq2SeqTrainingArguments

from cbmi.huggingface import (
    AdaptiveCollator,
    AdaptiveSeq2SeqTrainer,
    LanguageModelScores,
    train_language_model,
)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", help="name or folder")
parser.add_argument("--train", nargs=2, required=True, metavar="FILE")
parser.add_argument("--valid", nargs=2, required=True, metavar="FILE")
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--steps", type=int, default=5000)
parser.add_argument("--language-model", type=Path, help="trained on the target side if left out")
options = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(options.model)
model = AutoModelForSeq2SeqLM.from_pretrained(options.model)


def read_lines(file):
    with open(file, encoding="utf-8", newline="\n") as lines:
        return [line.rstrip("\r\n") for line in lines]


def read(files):
    source, target = map(read_lines, files)
    if len(source) != len(target):
        parser.error(f"{files[0]} has {len(source)} lines, but {files[1]} has {len(target)}")
    return Dataset.from_dict(
        dict(tokenizer(source, text_target=target, truncation=True, max_length=256))
    )


train, valid = read(options.train), read(options.valid)

# The language model says how likely each target token is without the source. Its scores become a
# column of the dataset, computed once.
start = model.config.decoder_start_token_id
lm = options.language_model or train_language_model(
    tokenizer, train, start=start, output=options.output / "lm"
)
train = LanguageModelScores(lm, start=start, tokenizer=tokenizer).add_to(
    train, cache=options.output / "cache"
)

trainer = AdaptiveSeq2SeqTrainer(
    model,
    Seq2SeqTrainingArguments(
        output_dir=str(options.output),
        max_steps=options.steps,
        per_device_train_batch_size=32,
        learning_rate=2e-5,
        label_smoothing_factor=0.1,
        eval_strategy="steps",
        eval_steps=500,
        save_steps=500,
        report_to=[],
    ),
    objective={"name": "cbmi", "scale_token": 0.1, "scale_sentence": 0.3},
    train_dataset=train,
    eval_dataset=valid,
    data_collator=AdaptiveCollator(tokenizer, model=model),
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model()

# What the objective makes of some pairs: `cbmi inspect` shows it word by word.
if trainer.is_world_process_zero():
    some = train.select(range(min(100, len(train))))
    trainer.token_weights(some).to_parquet(str(options.output / "weights.parquet"))
