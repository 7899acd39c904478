"""`cbmi.filter`: the same as the command, from Python."""

import cbmi


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
