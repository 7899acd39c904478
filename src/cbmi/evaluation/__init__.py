"""BLEU, chrF, TER and significance: text in, numbers out."""
