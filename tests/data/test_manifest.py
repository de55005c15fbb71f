"""Manifests: every dialect read alike, none that leaves its folder, and all that is wrong told in one error."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from npmatch.data.sources import open_source
from npmatch.errors import UserError


def paint(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (40, 30), shade).save(path)
    return path


def problems(data: object, **options: object) -> list[str]:
    """The lines of the error that opening gives."""
    with pytest.raises(UserError) as caught:
        open_source(data, **options)  # pyright: ignore[reportArgumentType]
    return str(caught.value).splitlines()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_dialects(tmp_path: Path, separator: str, end: str) -> None:
    rows = [["Path", "label", "split", "group", "note"], ['"a, b; c.png"', "cat", "", "p1", '"two\nlines, one; cell"']]
    rows += [
        ["d\\e.png", "dog", "TRAIN", "p1", ""],
        [],
        ["f.png", "", "train", "", ""],
        ["g.png", "dog", "test", "", ""],
    ]
    for name in ("a, b; c.png", "d/e.png", "f.png", "g.png"):
        paint(tmp_path / name)
    text = "\ufeff" + end.join(separator.join(row) for row in rows)
    (tmp_path / "list.csv").write_bytes(text.encode())
    source = open_source(tmp_path / "list.csv")
    assert list(source.ids) == ["a, b; c.png", "d/e.png", "f.png", "g.png"]
    assert source.labels.tolist() == [0, 1, -1, 1] and source.classes == ("cat", "dog")
    assert source.parts.tolist() == ["train"] * 3 + ["test"]
    assert source.groups is not None and source.groups.tolist() == ["p1", "p1", "", ""]


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_manifest_cannot_leave_its_folder(tmp_path: Path) -> None:
    outside, root = paint(tmp_path / "outside.png"), tmp_path / "set"
    for name in "ab":
        paint(root / f"{name}.png")
    (root / "link.png").symlink_to(outside)
    (root / "dir").symlink_to(tmp_path)
    (root / "inside.png").symlink_to(root / "a.png")
    os.mkfifo(root / "pipe.png")
    bad = [
        str(outside),
        "../outside.png",
        "x/../../outside.png",
        "link.png",
        "dir/outside.png",
        "~/x.png",
        "~root/x.png",
    ]
    bad += [f"file://{outside}", "https://x/y.png", "C:\\x.png", "..\\outside.png", "\\\\host\\x.png", "nul\0.png"]
    bad += ["pipe.png", ".", "", "gone.png", "/dev/zero", "/etc/passwd", "n" * 300 + ".png"]
    (root / "list.csv").write_text("path,label\na.png,cat\nb.png,dog\n" + "".join(f"{name},cat\n" for name in bad))
    lines = problems(root / "list.csv")
    assert lines[0] == "list.csv: 20 problems" and len(lines) == 1 + len(bad)
    assert [line.split(":")[0].strip() for line in lines[1:]] == [f"line {row}" for row in range(4, 24)]
    allowed = [str(outside), "../outside.png", "link.png", "dir/outside.png"]
    for name in allowed:
        (root / "list.csv").write_text(f"path,label\na.png,cat\nb.png,dog\n{name},cat\n")
        assert len(problems(root / "list.csv")) == 2
        assert len(open_source(root / "list.csv", allow_outside=True)) == 3
    for name in set(bad) - set(allowed) - {"..\\outside.png", "x/../../outside.png", "/etc/passwd"}:
        (root / "list.csv").write_text(f"path,label\na.png,cat\nb.png,dog\n{name},cat\n")
        assert len(problems(root / "list.csv", allow_outside=True)) == 2


def test_all_problems_of_a_manifest_come_together_with_their_lines(tmp_path: Path) -> None:
    for name in "abcd":
        paint(tmp_path / f"{name}.png")
    text = "path,label,split\na.png,cat,train\nb.png,dog,\na.png,dog,train\n./b.png,dog,train\n"
    text += "c.png,zebra,test\nd.png,,val\n"
    (tmp_path / "list.csv").write_text(
        text + "gone.png,cat,train\nx.png,cat\ny.png,cat,dev\n" + "z.png,cat,train\n" * 30
    )
    lines = problems(tmp_path / "list.csv")
    assert len(lines) == 22 and lines[-1].strip().startswith("… and ")
    (tmp_path / "list.csv").write_text(text + "gone.png,cat,train\nx.png,cat\nc.png,cat,dev\n")
    found = "\n".join(problems(tmp_path / "list.csv"))
    for expected in (
        "line 4: a.png: named at line 2 and here with two labels, 'cat' and 'dog'",
        "line 5: ./b.png: named at line 3 and here again",
        "line 6: 'zebra' is not a class of the training images: label some of them so",
        "line 7: an image for val needs a label",
        "line 8: gone.png: no such file",
        "line 9: 2 fields where the first line has 3",
        "line 10: split 'dev' is not train, val or test",
    ):
        assert expected in found


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "no column 'path'"),
        (b"a.png,cat\nb.png,dog\n", "no column 'path'"),
        (b"path,class\na.png,cat\n", "no column 'label'"),
        (b"path,label\n", "no class has labeled"),
        (b"path,label\na.png,\n", "no class has labeled"),
        (b"path,label\na.png,caf\xe9\n", "line 2 is not UTF-8"),
        ("path,label\na.png,x\n".encode("utf-16"), "not UTF-8"),
        (b'path,label\na.png,"cat\n', "line 2: unexpected end of data"),
        (b"path,label,label\na.png,cat,dog\n", "named twice"),
        (b"path,label\na.png," + b"9" * 5000 + b"\n", "only the class '999"),
        (b"path,label\na.png," + b"x" * 200_000, "line 2: field larger"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, content: bytes, expected: str) -> None:
    paint(tmp_path / "a.png")
    (tmp_path / "list.csv").write_bytes(content)
    assert expected in "\n".join(problems(tmp_path / "list.csv"))


@pytest.mark.parametrize("text", ["nan", "NaN", " NAN ", "", "-1", "-1.0"])
def test_texts_that_mean_no_label(tmp_path: Path, text: str) -> None:
    for name in "abc":
        paint(tmp_path / f"{name}.png")
    table = {"path": ["a.png", "b.png", "c.png"], "label": ["cat", "dog", text]}
    (tmp_path / "list.csv").write_text(f"path,label\na.png,cat\nb.png,dog\nc.png,{text}\n")
    (tmp_path / "labels.csv").write_text(f"path,label\na.png,cat\nb.png,dog\nc.png,{text}\n")
    pandas.DataFrame(table).to_parquet(tmp_path / "list.parquet")
    for source in (
        open_source(tmp_path / "list.csv"),
        open_source(tmp_path / "list.parquet"),
        open_source(tmp_path, labels_file=tmp_path / "labels.csv"),
        open_source(pandas.DataFrame(table), data_dir=tmp_path),
    ):
        assert source.classes == ("cat", "dog") and source.labels.tolist() == [0, 1, -1]


@pytest.mark.parametrize("text", ["NA", "n/a", "None", "NULL"])
def test_texts_that_may_mean_no_label_are_refused_once(tmp_path: Path, text: str) -> None:
    for name in "abcd":
        paint(tmp_path / f"{name}.png")
    (tmp_path / "list.csv").write_text(f"path,label\na.png,cat\nb.png,dog\nc.png,{text}\nd.png,{text}\n")
    (line,) = problems(tmp_path / "list.csv")[1:]
    assert f"line 4: {text!r} may be no label or a class" in line and "rename" in line


@given(
    st.one_of(st.binary(max_size=60), st.text('path,label;\t\n\r"ab./\\\0\u2028\x1c-1', max_size=60).map(str.encode))
)
@example("path,label\na\u2028\x1c.png,cat".encode())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_table_makes_anything_but_a_user_error(tmp_path: Path, content: bytes) -> None:
    for head in (b"", b"path,label\n"):
        (tmp_path / "list.csv").write_bytes(head + content)
        assert problems(tmp_path / "list.csv")


def test_a_flat_folder_with_a_labels_file(tmp_path: Path) -> None:
    for name in "abcde":
        paint(tmp_path / f"images/{name}.png", ord(name))
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label\nd.png,7\nb.png,10\n")
    source = open_source(tmp_path / "images", labels_file=labels)
    assert list(source.ids) == [f"{name}.png" for name in "dbace"]
    assert source.classes == ("7", "10") and source.labels.tolist() == [0, 1, -1, -1, -1]
    labels.write_text("path,label\nd.png,7\n../labels.csv,10\n")
    assert "line 3" in problems(tmp_path / "images", labels_file=labels)[1]


def test_parquet_and_data_frames_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcd":
        paint(tmp_path / f"{name}.png")
    table = {"path": [f"{name}.png" for name in "abcd"], "label": [3, None, 12, -1], "site": ["x", "y", None, "x"]}
    frame = pandas.DataFrame(table)
    assert frame["label"].dtype == float  # what pandas makes of numbers with gaps
    frame.to_parquet(tmp_path / "list.parquet")
    monkeypatch.chdir(tmp_path)
    nullable = frame.astype({"label": "Int64", "site": "string"})
    for data in (frame, nullable, nullable.convert_dtypes(), tmp_path / "list.parquet"):
        source = open_source(data, group_column="site")
        assert source.classes == ("3", "12") and source.labels.tolist() == [0, -1, 1, -1]
        assert source.groups is not None and source.groups.tolist() == ["x", "y", "", "x"]
    mixed = pandas.DataFrame({"path": table["path"], "label": [1, "1", "cat", np.nan]})
    assert "row 1: this label is text, the one at row 0 a number" in problems(mixed)[1]
    below = pandas.DataFrame({"path": table["path"], "label": [1, -2, 2, -1]})
    assert "row 1: -2 is not a class: only -1 means no label" in problems(below)[1]
    missing = pandas.DataFrame({"path": ["a.png", None, "b.png"], "label": list("xyx")})
    assert "row 1: : no path" in problems(missing)[1]
    assert "no column 'ward'" in problems(frame, group_column="ward")[0]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    assert "not a Parquet file" in problems(tmp_path / "bad.parquet")[0]
