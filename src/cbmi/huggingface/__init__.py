"""Adaptive objectives for Hugging Face's trainers: any model that translates, twenty lines.

    lm = train_language_model(tokenizer, data, start=start, output="lm")
    data = LanguageModelScores(lm, start=start).add_to(data)
    collator = AdaptiveCollator(tokenizer, model=model)
    AdaptiveSeq2SeqTrainer(model, args, objective="cbmi", train_dataset=data,
                           data_collator=collator).train()

docs/huggingface.md has whole scripts.
"""

from __future__ import annotations

from cbmi.errors import import_extra

for _module in ("transformers", "datasets", "accelerate"):
    import_extra(_module, "cbmi.huggingface", "huggingface")

from cbmi.huggingface.collator import AdaptiveCollator  # noqa: E402
from cbmi.huggingface.language_model import train_language_model  # noqa: E402
from cbmi.huggingface.language_model_scores import LanguageModelScores  # noqa: E402
from cbmi.huggingface.trainer import AdaptiveSeq2SeqTrainer, AdaptiveTrainer  # noqa: E402

__all__ = [
    "AdaptiveCollator",
    "AdaptiveSeq2SeqTrainer",
    "AdaptiveTrainer",
    "LanguageModelScores",
    "train_language_model",
]
