"""`cbmi.filter`: the same as the command, from Python."""

import pytest

import cbmi
from cbmi.errors import UserError


def test_the_result_says_what_was_done(small_run, tmp_path):
    files = (small_run / "valid.src", small_run / "valid.tgt")
    model = cbmi.load(small_run / "run", device="cpu", precision="fp32")
    looked = cbmi.filter(model, *files, output=tmp_path / "x")
    assert (looked.pairs, looked.kept, looked.dropped) == (20, None, None)
    assert looked.page == tmp_path / "x.html"
    assert looked.kept_files == looked.dropped_files == {}
    result = cbmi.filter(small_run / "run", *files, output=tmp_path / "x", keep=0.7)
    assert (result.pairs, result.kept, result.dropped) == (20, 14, 6)
    assert list(result.kept_files) == ["xx", "yy", "scores"]
    assert list(result.dropped_files) == ["xx", "yy", "scores", "reasons"]
    for path in result.kept_files.values():
        assert len(path.read_text().splitlines()) == 14
    for path in result.dropped_files.values():
        assert len(path.read_text().splitlines()) == 6


def test_a_model_in_half_precision_is_refused(small_run, tmp_path):
    files = (small_run / "valid.src", small_run / "valid.tgt")
    model = cbmi.load(small_run / "run", device="cpu", precision="bf16")
    with pytest.raises(UserError, match="needs float32 scores; load the model with precision='fp3"):
        cbmi.filter(model, *files, output=tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_truncated_lines_are_counted_anew_in_every_call(small_run, tmp_path, capsys):
    model = cbmi.load(small_run / "run", device="cpu", precision="fp32")
    target = tmp_path / "target"
    target.write_text("ba\nba\n")
    for name in ("one", "two"):
        source = tmp_path / f"{name}.src"
        source.write_text("ba " * 1500 + "\nba\n")
        cbmi.filter(model, source, target, output=tmp_path / name)
        assert capsys.readouterr().err.count("1 line was over 1024 pieces long") == 1
