"""Exported models give the run's own scores, and what would not is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
import yaml
from tasks import cbmi, write_run, write_task

pytest.importorskip("ctranslate2")

import ctranslate2

import cbmi as library
from cbmi.errors import UserError
from cbmi.inference.exported import ExportedModel
from cbmi.interop import ct2
from cbmi.interop.export import ExportSettings, export_run, quantized

SETTINGS = ExportSettings("ctranslate2", language_model=True)


def digest(folder: Path) -> str:
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            total.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return total.hexdigest()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Tiny runs: post- and pre-norm, shared and separate vocabularies."""
    made = {}
    for name, norm, shared in (
        ("post", "post", True),
        ("pre", "pre", True),
        ("two", "post", False),
    ):
        folder = tmp_path_factory.mktemp(name)
        write_task(folder)
        sizes = {"preset": "tiny", "width": 32, "feed_forward": 64, "heads": 2, "norm": norm}
        path = write_run(folder, model=sizes)
        vocabulary = f"data.vocabulary={{size: 330, shared: {str(shared).lower()}}}"
        result = cbmi("train", path, vocabulary)
        assert result.returncode == 0, result.stderr.decode()
        made[name] = folder / "run"
    return made


HARD = [
    "ein haus",
    "Straße – 日本語のテキスト 😀🎉",
    "</s> <s> <unk> <pad> <0x0A>",
    "ab " * 450,
    "x",
    "a\u00a0b\ttab",
]


CHARACTERS = list("abcdefgz ÄßéЖ日本語ไทย😀🎉\u00a0\u200b<>/&_▁1")


@pytest.mark.parametrize("name", ["post", "pre", "two"])
def test_scores_are_those_of_the_run(runs, tmp_path, name):
    before = digest(runs[name])
    export_run(runs[name], tmp_path / "out", SETTINGS)
    assert digest(runs[name]) == before
    own = library.load(runs[name], device="cpu", precision="fp32")
    exported = library.load(tmp_path / "out")
    assert isinstance(exported, ExportedModel)
    draw = np.random.default_rng(1)
    pairs = [(HARD[a], HARD[b]) for a, b in draw.integers(0, len(HARD), (40, 2))]
    for _ in range(960):
        texts = []
        for length in draw.integers(1, 9, 2):
            texts.append("".join(draw.choice(CHARACTERS, length)))
        pairs.append((texts[0], texts[1]))
    for one, other in zip(own.score(pairs), exported.score(pairs), strict=True):
        np.testing.assert_allclose(one.log_p_nmt, other.log_p_nmt, rtol=0, atol=1e-4)
        np.testing.assert_allclose(one.log_p_lm, other.log_p_lm, rtol=0, atol=1e-4)
        np.testing.assert_allclose(one.weights, other.weights, rtol=0, atol=1e-3)


def test_translations_are_those_of_the_run(tmp_path):
    """Of a run that has learnt to end its sentences."""
    write_task(tmp_path)
    stages = [{"name": "train", "objective": "ce", "steps": 150}]
    result = cbmi("train", write_run(tmp_path, stages=stages), "validate.every=150")
    assert result.returncode == 0, result.stderr.decode()
    export_run(tmp_path / "run", tmp_path / "out", ExportSettings("ctranslate2"))
    own = library.load(tmp_path / "run", device="cpu", precision="fp32")
    exported = library.load(tmp_path / "out")
    lines = [*(tmp_path / "train.src").read_text().splitlines()[:60], "", "  "]
    same = 0
    for one, other in zip(
        own.translate(lines, nbest=2), exported.translate(lines, nbest=2), strict=True
    ):
        assert len(one) == len(other)
        if one:
            # Where the searches part, it has found something at least as good.
            assert other[0].score >= one[0].score - 1e-4
            assert other[0].log_probability <= 0
            same += one[0].text == other[0].text
    assert same >= 0.9 * (len(lines) - 2)


def test_a_folder_takes_the_place_of_a_run(runs, tmp_path):
    folder = tmp_path / "out"
    result = cbmi(
        *("export", runs["post"], "--to", "ctranslate2", "-o", folder),
        *("--language-model", "--quantization", "int8", "--license", "cc-by-4.0"),
    )
    assert result.returncode == 0, result.stderr.decode()
    task = runs["post"].parent
    result = cbmi("translate", folder, task / "valid.src")
    assert result.returncode == 0, result.stderr.decode()
    assert len(result.stdout.splitlines()) == len((task / "valid.src").read_text().splitlines())
    files = ("--source", task / "valid.src", "--target", task / "valid.tgt")
    result = cbmi("score", folder, *files)
    assert result.returncode == 0, result.stderr.decode()
    assert "cbmi" in json.loads(result.stdout.splitlines()[0])
    result = cbmi("filter", folder, *files, "-o", tmp_path / "filtered", "--keep", "0.5")
    assert result.returncode == 0, result.stderr.decode()
    assert (tmp_path / "filtered.kept.xx").exists()
    card = (folder / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    assert head["language"] == ["xx", "yy"]
    assert head["license"] == "cc-by-4.0"
    assert str(task) not in card
    # It can be exported again, to the same place.
    assert cbmi("export", runs["post"], "--to", "ctranslate2", "-o", folder).returncode == 0
    assert not (folder / "language_model").exists()


def test_loads_without_cbmi(runs, tmp_path):
    """With CTranslate2 and sentencepiece alone, as its card says."""
    folder = tmp_path / "out"
    export_run(runs["two"], folder, ExportSettings("ctranslate2"))
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code = "import sys\nsys.modules['cbmi'] = sys.modules['torch'] = None\n" + code
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True)
    assert result.returncode == 0, result.stderr.decode()


@pytest.fixture(scope="module")
def package(runs, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("argos") / "xx_yy.argosmodel"
    result = cbmi("export", runs["post"], "--to", "argos", "-o", path, "--quantization", "int8")
    assert result.returncode == 0, result.stderr.decode()
    return path


def test_a_package_for_argos_holds_a_model_that_translates(package, tmp_path):
    with zipfile.ZipFile(package) as file:
        file.extractall(tmp_path)
    folder = tmp_path / "translate-xx_yy-1_0"
    metadata = json.loads((folder / "metadata.json").read_text())
    assert (metadata["from_code"], metadata["to_code"]) == ("xx", "yy")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    translator = ctranslate2.Translator(str(folder / "model"))
    found = translator.translate_batch([pieces.encode("ein haus", out_type=str)])
    assert isinstance(pieces.decode(found[0].hypotheses[0]), str)
    assert "argospm install" in (folder / "README.md").read_text()


def test_argos_translate_installs_the_package(package, tmp_path):
    pytest.importorskip("argostranslate", reason="Argos Translate is not installed")
    code = f"""
import argostranslate.package, argostranslate.translate as translate
# Its sentence splitter downloads a model.
translate.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
argostranslate.package.install_from_path({str(package)!r})
print("translated:", translate.translate("ein haus", "xx", "yy"))
"""
    places = {"XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "ARGOS_PACKAGES_DIR"}
    places = {name: str(tmp_path / name) for name in places}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **places, "ARGOS_CHUNK_TYPE": "MINISBD"},
        capture_output=True,
    )
    assert result.returncode == 0, result.stderr.decode()
    assert b"translated:" in result.stdout


def test_what_argos_cannot_take_is_refused(runs, tmp_path):
    def message(run, *options) -> str:
        result = cbmi("export", runs[run], "--to", "argos", *options)
        assert result.returncode == 2
        return result.stderr.decode()

    out = ("-o", tmp_path / "x.argosmodel")
    assert "needs one vocabulary for both sides" in message("two", *out)
    assert "has no place for it" in message("post", *out, "--language-model")
    assert "should be a file that ends in .argosmodel" in message("post", "-o", tmp_path / "x")
    precious = tmp_path / "y.argosmodel"
    precious.write_text("precious")
    assert "there is something else already" in message("post", "-o", precious)
    precious.unlink()
    assert not list(tmp_path.iterdir())


def shifted(embedding):
    return ct2.sinusoids(ct2.POSITIONS + 1, embedding.weight.shape[1])[1:]


def swapped(original):
    def set_linear(spec, linear):
        original(spec, linear)
        if linear.out_features == 2 * linear.in_features:  # key and value of cross-attention
            for name in ("weight", "bias"):
                first, second = np.split(getattr(spec, name), 2)
                setattr(spec, name, np.concatenate([second, first]))

    return set_linear


def permuted(original):
    def set_embedding(spec, stack, embedding):
        original(spec, stack, embedding)
        spec.weight[[300, 301]] = spec.weight[[301, 300]]

    return set_embedding


@pytest.mark.parametrize(("threads", "workers"), [(1, 1), (3, 3), (12, 6), (18, 6)])
def test_threads_of_the_caller_are_used_and_left_alone(runs, tmp_path, threads, workers):
    """As many batches side by side as leave no thread idle, up to eight."""
    folder = tmp_path / "exported"
    export_run(runs["post"], folder, SETTINGS)
    lines = ["ein haus", "x", "zwei häuser", ""] * 5
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        model = ExportedModel(folder, "cpu")
        assert model.translator.num_translators == workers
        found = model.translate(lines)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert found == ExportedModel(folder, "cpu").translate(lines)


@pytest.mark.parametrize("mistake", ["positions", "key and value", "embedding", "end"])
def test_mistakes_are_caught(runs, tmp_path, monkeypatch, mistake):
    if mistake == "positions":
        monkeypatch.setattr(ct2, "positions", shifted)
    elif mistake == "key and value":
        monkeypatch.setattr(ct2, "_set_linear", swapped(ct2._set_linear))
    elif mistake == "embedding":
        monkeypatch.setattr(ct2, "_set_embedding", permuted(ct2._set_embedding))
    else:
        save = ct2._save

        def without_end(spec, folder, quantization):
            if hasattr(spec.config, "add_source_eos"):
                spec.config.add_source_eos = False
            save(spec, folder, quantization)

        monkeypatch.setattr(ct2, "_save", without_end)
    with pytest.raises(UserError, match="differs from the run's by"):
        export_run(runs["post"], tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.iterdir())


def test_bad_exports_are_refused(runs, tmp_path):
    def message(*options) -> str:
        result = cbmi("export", *options)
        assert result.returncode == 2
        return result.stderr.decode()

    run = runs["post"]
    out = ("-o", tmp_path / "out")
    assert "'onnx' is not one of ctranslate2, huggingface, argos" in message(
        run, "--to", "onnx", *out
    )
    options = ("--to", "ctranslate2", *out)
    assert "'int4' is not one of" in message(run, *options, "--quantization", "int4")
    assert "there is no such checkpoint" in message(run, *options, "--checkpoint", "step-9")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    assert "there is something else already" in message(run, *options)
    assert (tmp_path / "out" / "precious").exists()
    exported = tmp_path / "exported"
    export_run(run, exported, ExportSettings("ctranslate2"))
    with pytest.raises(UserError, match="cannot sample"):
        library.load(exported).translate(["a"], sampling=library.Sampling())
    with pytest.raises(UserError, match="has no checkpoints"):
        library.load(exported, "step-4")
    (exported / "cbmi.json").write_text("{}")
    with pytest.raises(UserError, match=r"cbmi\.json: this was not written by cbmi export"):
        library.load(exported)


def test_a_quantized_copy_to_serve(runs):
    """`cbmi serve --int8` serves it; it goes when it is not needed any more."""
    with quantized(runs["post"]) as folder:
        model = library.load(folder)
        assert model.has_language_model
        assert "int8" in repr(model)
        assert len(model.translate(["ein haus"])) == 1
    assert not folder.exists()


def test_a_damaged_export_is_refused(runs, tmp_path):
    exported = tmp_path / "exported"
    export_run(runs["post"], exported, ExportSettings("ctranslate2"))
    (exported / "model.bin").write_bytes(b"nothing")
    with pytest.raises(UserError, match="CTranslate2 cannot load it"):
        library.load(exported)


def test_a_run_without_text_is_verified_with_random_pieces(runs, tmp_path):
    """A copy of a run needs its vocabulary and a checkpoint only."""
    import shutil

    shutil.copytree(runs["post"], tmp_path / "run", symlinks=True)
    shutil.rmtree(tmp_path / "run" / "data")
    export_run(tmp_path / "run", tmp_path / "out", SETTINGS)
    assert torch.isfinite(
        torch.tensor(library.load(tmp_path / "out").score([("a", "b")])[0].cbmi)
    ).all()
