"""Every objective as its formula says it, token by token, in plain float64, without chunks."""

from __future__ import annotations

import math

import torch

EPS = 0.1  # label smoothing
END = 2
SPECIALS = 4
INFINITE = math.inf


def log_softmax(states):
    return torch.log_softmax(states[0] @ states[1].T, dim=1)


class Reference:
    """Losses of a batch. Each method takes the settings by the names that the run file has."""

    def __init__(self, batch):
        self.batch = batch
        self.logits = batch.hidden @ batch.weight.T
        self.log_p = torch.log_softmax(self.logits, dim=1)
        self.log_lm, self.log_tm = log_softmax(batch.lm), log_softmax(batch.teacher)
        self.tokens = range(len(batch.gold))
        self.nmt, self.lm = self.gold(self.log_p), self.gold(self.log_lm)
        self.ell = self.smoothed(self.log_p)
        self.sentences = [
            [j for j in self.tokens if batch.sentence[j] == b and batch.mask[j]]
            for b in range(len(batch.lengths))
        ]

    def gold(self, table):
        return torch.stack([table[j, self.batch.gold[j]] for j in self.tokens])

    def smoothed(self, scores):
        return -(1 - EPS) * self.gold(scores) - EPS * scores.mean(1)

    def losses(self, name, **settings):
        return getattr(self, name.replace("-", "_"))(**settings)

    def weighted(self, weights):
        return self.ell * torch.tensor(weights, dtype=torch.float64)

    def ce(self):
        return self.ell

    def frequency(self, curve, rescale=None):
        weights = []
        types = [float(c) for c in self.batch.frequency[SPECIALS:] if c > 0]
        for y in self.batch.gold.tolist():
            f = curve(float(self.batch.frequency[y]))
            if rescale:
                top = math.e if rescale == "e" else rescale
                f = (top - 1) * f / max(curve(c) for c in types)
            weights.append(1.0 if y < SPECIALS else f + 1)
        return self.weighted(weights)

    def freq_exp(self, amplitude=1.0, decay=1.75, rescale=None):
        return self.frequency(lambda c: amplitude * math.exp(-decay * c), rescale)

    def freq_chi2(self, amplitude=1.0, decay=2.5, rescale=None):
        return self.frequency(lambda c: amplitude * c**2 * math.exp(-decay * c), rescale)

    def bmi(self, slope=0.15, base=0.8, threshold=0.4):
        weights = []
        for y, value in zip(self.batch.gold.tolist(), self.batch.bmi.tolist(), strict=True):
            kept = threshold is None or value > threshold
            weights.append(1.0 if y == END else (slope * value + base if kept else 0.0))
        return self.weighted(weights)

    def focal(self, alpha=0.1, gamma=1.0, detach=False, sign=-1):
        p = self.nmt.exp()
        return (1 + sign * alpha * (p.detach() if detach else p)) ** gamma * self.ell

    def anti_focal(self, **settings):
        return self.focal(sign=1, **settings)

    def self_paced(self, samples=5, power=2.0):
        runtime = self.batch.samples
        likelihood = [
            [float(sum(runtime[k, j] for j in s)) for s in self.sentences] for k in range(samples)
        ]
        lowest = min(min(row) for row in likelihood)
        confidence = [0.0 for _ in self.tokens]
        for b, sentence in enumerate(self.sentences):
            whole = (1 - variance([likelihood[k][b] / lowest for k in range(samples)])) ** power
            for j in sentence:
                token = (1 - variance([math.exp(runtime[k, j]) for k in range(samples)])) ** power
                confidence[j] = math.exp(token * whole)
        total, count = sum(confidence), sum(len(s) for s in self.sentences)
        return self.weighted([count * c / total for c in confidence])

    def fusion_prenorm(self):
        return self.smoothed(torch.log_softmax(self.logits + self.log_lm, dim=1))

    def fusion_postnorm(self):
        return self.smoothed(self.log_p + self.log_lm)

    def lm_prior(self, strength=0.1, temperature=2.0):
        q = torch.softmax(self.log_lm / temperature, dim=1)
        p = torch.softmax(self.logits / temperature, dim=1)
        return self.ell + strength * temperature**2 * (q * (q.log() - p.log())).sum(1)

    def cbmi(self, scale_token=0.1, scale_sentence=0.3, unit="piece", compare="batch"):
        c = (self.nmt - self.lm).tolist()
        means = [sum(c[j] for j in s) / len(s) for s in self.sentences]
        value = c if unit == "piece" else self.word_sums(c)
        weights = [0.0 for _ in self.tokens]
        for b, sentence in enumerate(self.sentences):
            compared = means if compare == "batch" else self.of_like_length(b, means)
            mean, std = sum(compared) / len(compared), math.sqrt(variance(compared))
            whole = max(0.0, scale_sentence * (means[b] - mean) / std + 1) if std > 1e-7 else 1.0
            own = [value[j] for j in sentence]
            middle, spread = sum(own) / len(own), math.sqrt(variance(own))
            for j in sentence:
                weights[j] = whole * (
                    max(0.0, scale_token * (value[j] - middle) / spread + 1)
                    if spread > 1e-12
                    else 1.0
                )
        return self.weighted(weights)

    def word_sums(self, c):
        """For each token the sum over its word; every third piece and the end begin one."""
        sums = [0.0 for _ in self.tokens]
        for sentence in self.sentences:
            words = []
            for j in sentence:
                piece = int(self.batch.gold[j])
                if not words or piece % 3 == 0 or piece == END:
                    words.append([])
                words[-1].append(j)
            for word in words:
                for j in word:
                    sums[j] = sum(c[i] for i in word)
        return sums

    def of_like_length(self, b, means):
        """The means of the sentences that sentence b is compared with: five, if there are."""
        classes = [math.floor(2 * math.log2(len(s))) for s in self.sentences]
        for reach in range(40):
            close = [i for i, k in enumerate(classes) if abs(k - classes[b]) <= reach]
            if len(close) >= 5 or len(close) == len(means):
                return [means[i] for i in close]
        raise AssertionError

    def prior(self, prior, strength=0.1, gold_only=False, interval=(-INFINITE, INFINITE)):
        log_q = {
            "lm": self.log_lm,
            "tm": self.log_tm,
            "cbmi": torch.log_softmax(self.log_tm - self.log_lm.clamp(min=math.log(1e-9)), dim=1),
        }[prior]
        c = (self.nmt - self.lm).detach()
        inside = ((c > interval[0]) & (c <= interval[1])).double()
        if gold_only:
            return (1 + strength * inside * self.gold(log_q).exp()) * self.ell
        return self.ell - strength * inside * (log_q.exp() * self.log_p).sum(1)

    def prior_lm(self, **settings):
        return self.prior("lm", **settings)

    def prior_tm(self, **settings):
        return self.prior("tm", **settings)

    def prior_cbmi(self, **settings):
        return self.prior("cbmi", **settings)

    def prior_selection(self, thresholds=(0.0, 8.0), only=None, **settings):
        low, high = thresholds
        intervals = {"lm": (-INFINITE, low), "tm": (low, high), "cbmi": (high, INFINITE)}
        parts = [
            self.prior(q, interval=i, **settings) for q, i in intervals.items() if only in (None, q)
        ]
        return self.ell + sum(part - self.ell for part in parts)

    def weights_file(self, file):
        return self.ell * self.batch.given


def variance(values):
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)
