"""`preset: public`: whole steps as the paper's public code takes them, against float64 loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tasks import (
    PIECES,
    WORLD,
    cbmi,
    random_corpus,
    read_log,
    refused,
    tiny_live_run,
    write_run,
    write_task,
)

from cbmi.config import OptimizerSettings
from cbmi.model import LanguageModel, Translator
from cbmi.model.head import token_log_probabilities
from cbmi.model.layers import Shape
from cbmi.objectives import build
from cbmi.training.batching.builder import BatchBuilder, Segmentation
from cbmi.training.batching.plan import EpochPlan, groups_of_like_length
from cbmi.training.learner import Learner
from cbmi.training.log import Meter
from cbmi.training.stage_inputs import StageInputs
from cbmi.training.step import Stepper

SHAPE = Shape(16, 32, 2, 1, 1, 0.1, 0.1, 0.1)
STEP = 240
GROUP = 80  # tokens, padding included


def groups_by_loops(lengths, tokens):
    """Sorted lengths of the pairs of each group, as fairseq fills them one by one."""
    waiting = []
    groups = []
    for pair in sorted(zip(*lengths.tolist(), strict=True)):
        longest = max(max(one) for one in [*waiting, pair])
        if waiting and (len(waiting) + 1) * longest > tokens:
            size = len(waiting) if len(waiting) < 8 else len(waiting) // 8 * 8
            groups.append(waiting[:size])
            waiting = waiting[size:]
        waiting.append(pair)
    return [*groups, waiting]


def random_lengths(pairs, seed):
    return np.random.default_rng(seed).integers(1, 15, (2, pairs))


@given(st.integers(1, 300), st.integers(1, 200), st.integers(0, 9))
def test_groups_are_those_of_fairseq(pairs, tokens, seed):
    lengths = random_lengths(pairs, seed)
    groups = groups_of_like_length(lengths, tokens, seed)
    found = [list(zip(*lengths[:, group].tolist(), strict=True)) for group in groups]
    assert found == groups_by_loops(lengths, tokens)


@given(st.integers(1, 300), st.integers(1, 5), st.integers(0, 9), st.integers(0, 3))
def test_an_epoch_is_made_of_its_groups_in_random_order(pairs, groups_per_step, seed, epoch):
    lengths = random_lengths(pairs, seed)
    plan = EpochPlan(lengths, GROUP * groups_per_step, seed, epoch, GROUP)
    found = []
    for batch in range(len(plan)):
        groups = plan.groups(batch)
        assert len(groups.longest) == groups_per_step
        for number in range(groups.of_pairs.max() + 1):
            members = plan[batch][groups.of_pairs == number]
            assert groups.longest[number] == lengths[1][members].max()
            found.append(members.tolist())
        assert batch == len(plan) - 1 or groups.of_pairs.max() + 1 == groups_per_step
    expected = [group.tolist() for group in groups_of_like_length(lengths, GROUP, seed)]
    assert sorted(found) == sorted(expected)
    assert len(found) < 9 or found != expected  # shuffled


def public_weights(nmt, lm, scale_token, scale_sentence):
    """The weights of one group: nmt and lm are lists of sentences, each a list of log p."""
    padded = max(len(sentence) for sentence in nmt)
    values = []
    for one_nmt, one_lm in zip(nmt, lm, strict=True):
        pairs = zip(one_nmt, one_lm, strict=True)
        values.append([math.log(math.exp(a) / (math.exp(b) + 1e-9)) for a, b in pairs])
    means = [sum(c) / len(c) for c in values]
    sentence_weights = clipped(means, scale_sentence, padded)
    token_weights = [clipped(c, scale_token, padded) for c in values]
    return [
        [w_s * w_t for w_t in row] for w_s, row in zip(sentence_weights, token_weights, strict=True)
    ]


def clipped(values, scale, padded):
    mean = sum(values) / len(values)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / padded)
    if std < 1e-12:
        return [0.0] * len(values)  # 0/0 is not a number, and that is not ≥ 0
    return [max(0.0, scale * (value - mean) / std + 1) for value in values]


def gold_scores(network, *inputs, gold):
    """log p of the gold tokens, and the mean over the vocabulary."""

    def head(hidden, weight, ids, *, fused):
        return token_log_probabilities(hidden, weight, ids, None, fused=fused)

    output = network(*inputs, gold, head=head)
    return output.log_p, output.mean_log_p


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_equals_the_public_codes(tmp_path, monkeypatch, accumulate):
    """Its gradient, dropout included, for steps of three groups each."""
    corpus = random_corpus(tmp_path, 200)
    torch.manual_seed(0)
    translator = Translator(SHAPE, PIECES, PIECES, shared=True).double()
    language_model = LanguageModel(SHAPE, PIECES).double().requires_grad_(False)
    stepper = Stepper(
        objective=build({"name": "cbmi", "preset": "public", "scale_token": 0.5}, "test"),
        translator=Learner(translator, OptimizerSettings(), WORLD, torch.float32),
        language_model=None,
        stage_inputs=StageInputs(frozen=language_model.train()),
        smoothing=0.1,
        precision=torch.float32,
        world=WORLD,
        meter=Meter(WORLD),
    )
    monkeypatch.setattr(stepper, "_update", lambda: None)
    builder = BatchBuilder([Segmentation(corpus, {})], STEP, accumulate, 1, WORLD, GROUP)
    plan = builder.plan(0)
    batches = builder.batches(0, 0, 1, None)
    for number in range(len(plan)):
        batch = next(batches)
        micro_batches = [pinned.to_device(WORLD.device) for pinned in batch.micro_batches]
        translator.zero_grad()
        stepper.compute(micro_batches)
        found = [parameter.grad.clone() for parameter in translator.parameters()]
        expected = reference_gradient(
            translator, language_model, corpus, micro_batches, plan[number]
        )
        for own, other in zip(found, expected, strict=True):
            assert torch.allclose(own, other, atol=1e-9), number
    assert number > 3


def reference_gradient(translator, language_model, corpus, micro_batches, pairs):
    """Groups are found from the lengths alone; scores come from the same dropout masks."""
    groups = {}
    for number, group in enumerate(groups_of_like_length(corpus.lengths(), GROUP, 1)):
        for pair in group.tolist():
            groups[pair] = number
    losses = []
    tokens = {}  # of each pair: (log p, log p_LM, place in `losses`)
    translator.zero_grad()
    for micro_batch in micro_batches:
        gold = micro_batch.target.ids
        for network in (translator, language_model):
            network.runtime.seed = micro_batch.dropout_seed
        log_p, mean = gold_scores(translator, micro_batch.source, micro_batch.inputs, gold=gold)
        lm, _ = gold_scores(language_model, micro_batch.inputs, gold=gold)
        for token in range(len(gold)):
            place = int(micro_batch.corpus_index[token])
            pair = int(np.searchsorted(corpus.target.offsets, place, side="right")) - 1
            scores = (log_p[token].item(), lm[token].item(), len(losses))
            tokens.setdefault(pair, []).append(scores)
            losses.append(-(0.9 * log_p[token] + 0.1 * mean[token]))
    assert set(tokens) == set(pairs.tolist())
    weights = torch.zeros(len(losses), dtype=torch.float64)
    for number in {groups[pair] for pair in tokens}:
        members = [pair for pair in tokens if groups[pair] == number]
        nmt = [[score[0] for score in tokens[pair]] for pair in members]
        lm_scores = [[score[1] for score in tokens[pair]] for pair in members]
        for pair, row in zip(members, public_weights(nmt, lm_scores, 0.5, 0.3), strict=True):
            for score, weight in zip(tokens[pair], row, strict=True):
                weights[score[2]] = weight
    (torch.stack(losses) * weights).sum().div(len(losses)).backward()
    return [parameter.grad for parameter in translator.parameters()]


PUBLIC = [
    {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 6},
    {"name": "adapt", "objective": {"name": "cbmi", "preset": "public"}, "steps": 6, "groups": 80},
]


@pytest.mark.slow
def test_a_run_with_the_preset(tmp_path):
    """Trained, interrupted and resumed, weighted and scored."""
    write_task(tmp_path)
    path = write_run(tmp_path, stages=PUBLIC, batch={"tokens": 240})

    def losses(name, *changes):
        output = f"output={tmp_path / name}"
        for changed in changes or [[]]:
            assert cbmi("train", path, output, *changed).returncode == 0
        return [record["loss"] for record in read_log(tmp_path / name) if "loss" in record]

    whole = losses("whole")
    assert losses("resumed", ["stages.1.steps=3"], []) == whole
    without = losses("without", ["stages.1.objective.lm_dropout=false"])
    assert without[:6] == whole[:6]
    assert without[6:] != whole[6:]
    weights = tmp_path / "weights.txt"
    command = ("weights", tmp_path / "whole", "--objective", "cbmi", "-o", weights)
    assert cbmi(*command).returncode == 0
    assert len(weights.read_text().splitlines()) == 200
    files = ("--source", tmp_path / "test.src", "--target", tmp_path / "test.tgt")
    scores = tmp_path / "scores.jsonl"
    assert cbmi("score", tmp_path / "whole", *files, "-o", scores).returncode == 0
    assert len(scores.read_text().splitlines()) == 20


def test_what_the_preset_needs_is_said(tmp_path):
    write_task(tmp_path)
    path = write_run(tmp_path, stages=PUBLIC, batch={"tokens": 240})
    message = refused("train", path, "stages.1.groups=null")
    assert "stages.adapt: steps of 240 tokens cannot be made of groups of 4,096" in message
    message = refused("train", path, "stages.1.language_model=cached")
    assert "cached scores have none: set language_model: frozen" in message


def test_a_stage_with_other_batches_begins_an_epoch(tmp_path):
    live = tiny_live_run(tmp_path, stages=PUBLIC)
    live.state.epoch = 3
    live.state.batch = 17
    live.begin_stage(1)
    assert (live.state.epoch, live.state.batch, live.state.stage_epoch) == (4, 0, 4)
