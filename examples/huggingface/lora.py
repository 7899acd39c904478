"""Teach a decoder-only model to translate, with LoRA and CBMI.

    python examples/huggingface/lora.py Qwen/Qwen2.5-0.5B --train train.en train.de \
        --instruction "Translate from English to German." --output lora-cbmi

The language model is the model itself, given the prompt without the source.
"""

import argparse
from pathlib import Path

from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

from cbmi.huggingface import AdaptiveCollator, AdaptiveTrainer, LanguageModelScores

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", help="name or folder")
parser.add_argument("--train", nargs=2, required=True, metavar="FILE")
parser.add_argument("--instruction", default="Translate from English to German.")
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--steps", type=int, default=2000)
options = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(options.model)
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(options.model)


def read_lines(file):
    with open(file, encoding="utf-8", newline="\n") as lines:
        return [line.rstrip("\r\n") for line in lines]


def prompt(source):
    return tokenizer(f"{options.instruction}\n{source}\n")["input_ids"]


rows = []
source_lines, target_lines = map(read_lines, options.train)
if len(source_lines) != len(target_lines):
    parser.error(f"--train: {len(source_lines)} source lines, but {len(target_lines)} target lines")
for source, target in zip(source_lines, target_lines, strict=True):
    before = prompt(source)
    after = tokenizer(target, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    # The loss is on the target alone.
    rows.append({"input_ids": before + after, "labels": [-100] * len(before) + after})
data = Dataset.from_list(rows)
data = LanguageModelScores(model, start=prompt("")).add_to(data, cache=options.output / "cache")

adapted = get_peft_model(
    model, LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"])
)
trainer = AdaptiveTrainer(
    adapted,
    TrainingArguments(
        output_dir=str(options.output),
        max_steps=options.steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        learning_rate=2e-4,
        report_to=[],
    ),
    objective="cbmi",
    train_dataset=data,
    data_collator=AdaptiveCollator(tokenizer),
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model()
