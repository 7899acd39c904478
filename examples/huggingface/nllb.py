"""Fine-tune NLLB with CBMI for one direction.

    python examples/huggingface/nllb.py facebook/nllb-200-distilled-600M \
        --languages eng_Latn deu_Latn --train train.en train.de --output nllb-cbmi

The labels of NLLB begin with the code of the target language, and so does what the language model
predicts. M2M100 works in the same way. To translate, give `forced_bos_token_id` to `generate`.
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
parser.add_argument("--languages", nargs=2, required=True, metavar="CODE")
parser.add_argument("--train", nargs=2, required=True, metavar="FILE")
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--steps", type=int, default=5000)
parser.add_argument("--language-model", type=Path, help="trained on the target side if left out")
options = parser.parse_args()

from_language, to_language = options.languages
tokenizer = AutoTokenizer.from_pretrained(
    options.model, src_lang=from_language, tgt_lang=to_language
)
model = AutoModelForSeq2SeqLM.from_pretrained(options.model)


def read_lines(file):
    with open(file, encoding="utf-8", newline="\n") as lines:
        return [line.rstrip("\r\n") for line in lines]


source, target = map(read_lines, options.train)
if len(source) != len(target):
    parser.error(f"--train: {len(source)} source lines, but {len(target)} target lines")
data = Dataset.from_dict(
    dict(tokenizer(source, text_target=target, truncation=True, max_length=256))
)

start = model.config.decoder_start_token_id
lm = options.language_model or train_language_model(
    tokenizer, data, start=start, output=options.output / "lm"
)
data = LanguageModelScores(lm, start=start, tokenizer=tokenizer).add_to(
    data, cache=options.output / "cache"
)

trainer = AdaptiveSeq2SeqTrainer(
    model,
    Seq2SeqTrainingArguments(
        output_dir=str(options.output),
        max_steps=options.steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,  # weights compare all 32 pairs of a step
        learning_rate=2e-5,
        report_to=[],
    ),
    objective="cbmi",
    train_dataset=data,
    data_collator=AdaptiveCollator(tokenizer, model=model),
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model()
