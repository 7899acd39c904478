"""Corpus files as they come: packed, damaged, oddly encoded."""

from __future__ import annotations

import gzip
import lzma
from collections import Counter
from pathlib import Path

import pytest
import zstandard

from cbmi.data.compressed import open_bytes
from cbmi.data.lines import count_lines, read_lines
from cbmi.data.text import read_pairs
from cbmi.errors import UserError


def lines(path: Path, counts: Counter[str] | None = None) -> list[str]:
    if counts is None:
        counts = Counter()
    return list(read_lines(str(path), counts))


PACKERS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", PACKERS)
def test_packed_files_are_read_as_they_are(tmp_path, suffix):
    path = tmp_path / f"text{suffix}"
    path.write_bytes(PACKERS[suffix]("ein\nzwei ü\n\ndrei".encode()))
    assert lines(path) == ["ein", "zwei ü", "", "drei"]
    assert count_lines(str(path)) == 4


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_files_packed_in_parts_are_read_whole(tmp_path, suffix):
    pack = PACKERS[suffix]
    path = tmp_path / f"text{suffix}"
    path.write_bytes(pack(b"one\ntw") + pack(b"o\nthree\n"))
    assert lines(path) == ["one", "two", "three"]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_damaged_archive_is_named(tmp_path, suffix):
    path = tmp_path / f"text{suffix}"
    content = "".join(f"line {i} {i * 7919 % 1000}\n" for i in range(5000)).encode()
    whole = PACKERS[suffix](content)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=rf"text{suffix}"):
        lines(path)
    path.write_bytes(b"not packed at all")
    with pytest.raises(UserError, match=rf"text{suffix}"):
        lines(path)


def test_only_line_feeds_end_lines(tmp_path):
    path = tmp_path / "text"
    odd = ["a\u2028b", "c\u2029d\x85e", "f\x0bg\x0ch", "i\rj", "k\x1cl"]
    path.write_bytes("\r\n".join(odd).encode())
    assert lines(path) == odd


def test_marks_and_nuls_are_repaired_and_counted(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbffirst\nse\0cond\nthird \xef\xbb\xbf\n\xef\xbb\xbffour\0th\n")
    counts = Counter()
    # Only at the start of the file is it a mark.
    assert lines(path, counts) == ["first", "se cond", "third \ufeff", "\ufefffour th"]
    assert counts["repaired"] == 3


def test_a_zst_file_is_closed_with_its_reader(tmp_path):
    path = tmp_path / "text.zst"
    path.write_bytes(zstandard.compress(b"one\n"))
    with open_bytes(str(path)) as file:
        compressed = file.raw.compressed
        assert file.read() == b"one\n"
        assert not compressed.closed
    assert compressed.closed


def test_a_line_of_a_megabyte(tmp_path):
    path = tmp_path / "text"
    path.write_text("short\n" + "x" * 1_000_000 + "\nshort\n")
    assert [len(line) for line in lines(path)] == [5, 1_000_000, 5]


def test_invalid_utf8_is_named_by_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"good\nalso good\nbad \xff here\n")
    with pytest.raises(UserError, match=r"text, line 3: not valid UTF-8 \(byte 5\)"):
        lines(path)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        lines(tmp_path / "nothing")
    with pytest.raises(UserError, match="folder"):
        lines(tmp_path)


def pairs(*paths: Path) -> list[tuple[str, str]]:
    return list(read_pairs([str(path) for path in paths], ("en", "de"), Counter()))


def test_two_files_or_one_with_tabs(tmp_path):
    source = tmp_path / "a"
    target = tmp_path / "b"
    both = tmp_path / "both.tsv"
    source.write_text("one\ntwo\n")
    target.write_text("eins\nzwei\n")
    both.write_text("one\teins\ntwo\tzwei\n")
    assert pairs(source, target) == pairs(both) == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(("left", "right"), [(3, 7), (7, 3), (0, 2)])
def test_unequal_files_say_both_counts(tmp_path, left, right):
    source = tmp_path / "a"
    target = tmp_path / "b"
    source.write_text("x\n" * left)
    target.write_text("y\n" * right)
    with pytest.raises(UserError, match=rf"a has {left} lines but .*b has {right}"):
        pairs(source, target)


@pytest.mark.parametrize("line", ["no tab", "one\ttwo\tthree"])
def test_wrong_columns_are_named_by_line(tmp_path, line):
    path = tmp_path / "both.tsv"
    path.write_text(f"a\tb\n{line}\n")
    with pytest.raises(UserError, match=r"both\.tsv, line 2"):
        pairs(path)
