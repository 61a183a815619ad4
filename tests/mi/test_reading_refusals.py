"""Files and columns that are refused: one clear message each."""

import gzip
import pickle

import numpy as np
import pytest

from flatnce.mi.reading import read_tables

pd = pytest.importorskip("pandas", reason="needs pandas: pip install 'flatnce[mi]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'flatnce[mi]'")


def refused(path, x="0", y="1", **options):
    with pytest.raises((ValueError, OSError)) as raised:
        read_tables([path] if not isinstance(path, list) else path, x=x, y=y, **options)
    said = str(raised.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n", "names and no rows"),
        ("1.5,2.5\n3.5,4.5\n", "--no-header"),
        ("a,b\n1,2\n3,4,5,6\n", "line 3, saw 4"),
        ("a,b\n1,2,3\n4,5,6\n", "2 names in its first line and 3 cells"),
        ("Report of 2024\n\na,b\n1,2\n3,4\n", "above the names"),
        ("PK\x03\x04 and so on", "not text"),
        ("a\0,b\n", "not text"),
    ],
)
def test_text_that_is_no_table_is_refused(tmp_path, text, words):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    assert words in refused(path)


def test_nothing_chosen_is_refused_with_the_columns_and_an_example(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("day,height (cm),mass\n2024-01-01,1,2\n2024-01-02,3,4\n")
    said = refused(path, None, None)
    assert "--x 'height (cm)' --y mass" in said and "'day', 'height (cm)', 'mass'" in said


def test_one_column_alone_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a\n1\n2\n")
    assert "second file" in refused(path, None, None)


def test_a_column_of_both_is_refused_by_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("emb_0,emb_1,b\n1,2,3\n4,5,6\n")
    assert "'emb_1'" in refused(path, "emb_*", "emb_1:b")


def test_a_name_that_stands_twice_is_refused_with_its_numbers(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b,a\n1,2,3\n4,5,6\n")
    assert "columns 0 and 2" in refused(path, "a", "b")
    np.testing.assert_array_equal(read_tables([path], x="2", y="b").x, [[3], [6]])


@pytest.mark.parametrize(
    "cells, words",
    [
        (["1", "2", "broken", "4"], "row 3 of the data holds 'broken'"),
        (["cm", "2", "3", "4"], "row 1 of the data holds 'cm'"),
        (["cm", "2", "3", "4"], "a row of units, delete it"),
        (["180 cm", "170 cm", "165 cm", ""], "unit in the column's name"),
        (["1,234.5", "2,345.6", "7", "8"], "between thousands"),
        (["12%", "7%", "8%", "9%"], "unit"),
    ],
)
def test_cells_that_are_no_numbers_are_shown(tmp_path, cells, words):
    path = tmp_path / "a.csv"
    rows = "".join(f'"{cell}",{number}\n' for number, cell in enumerate(cells))
    path.write_text(f"height,b\n{rows}")
    said = refused(path, "height", "b")
    assert "'height'" in said and words in said


def test_too_many_words_for_one_hot_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    words = [chr(97 + i // 26) + chr(97 + i % 26) for i in range(60)]
    path.write_text("word,b\n" + "".join(f"{w}w,{i}\n" for i, w in enumerate(words)))
    assert "60 different words" in refused(path, "word", "b", encode="one-hot")
    assert len(read_tables([path], x="word", y="b", encode="ordinal").x) == 60


def test_lists_in_parquet_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"emb": [[1.0, 2.0], [3.0, 4.0]], "b": [1, 2]}).to_parquet(path)
    assert "lists" in refused(path, "emb", "b")


def test_two_files_of_different_lengths_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((5, 2)))
    np.save(tmp_path / "y.npy", np.ones((6, 2)))
    said = refused([tmp_path / "x.npy", tmp_path / "y.npy"], None, None)
    assert "has 5 rows" in said and "has 6 rows" in said and "position" in said


def test_three_files_are_refused(tmp_path):
    assert "3 files" in refused([tmp_path / "a.npy"] * 3)


@pytest.mark.parametrize(
    "array, words",
    [
        (np.array([[1, "a"], [2, "b"]], dtype=object), "object array"),
        (np.ones((4, 2), dtype=complex), "complex"),
        (np.array([["a", "b"]]), "dtype"),
        (np.array(["2024-01-01"], dtype="datetime64[D]"), "dtype"),
        (np.ones((4, 2, 3)), "shape (4, 2, 3)"),
        (np.float64(3.0), "shape ()"),
        (np.empty((0, 3)), "empty"),
        (np.zeros(3, dtype=[("a", float), ("b", int)]), "dtype"),
    ],
)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_arrays_of_no_use_are_refused(tmp_path, array, words, suffix):
    path = tmp_path / f"a.{suffix}"
    (np.save if suffix == "npy" else np.savez)(path, array)
    assert words in refused(path)


class Explosive:
    def __reduce__(self):
        return pytest.fail, ("a pickle was opened",)


@pytest.mark.parametrize("name", ["a.pkl", "a.npy", "a.npz", "a.csv", "a.pt", "a.parquet"])
def test_pickles_are_never_opened(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Explosive(), protocol=0 if name == "a.csv" else 4))
    refused(path)


def test_arrays_of_an_archive_must_have_as_many_rows(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones((5, 2)), b=np.ones(4))
    assert "'a' 5, 'b' 4" in refused(tmp_path / "a.npz", "a", "b")


def test_two_archives_without_the_names_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones((5, 2)), b=np.ones(5))
    assert "--x a" in refused([tmp_path / "a.npz"] * 2, None, None)


@pytest.mark.parametrize(
    "name, words",
    [("a.xlsx", "spreadsheet"), ("a.pickle", "pickle"), ("a.json", "'.json'"), ("a", "no suffix")],
)
def test_other_formats_are_refused(tmp_path, name, words):
    (tmp_path / name).write_text("a,b\n1,2\n")
    assert words in refused(tmp_path / name)


def test_a_missing_file_is_named_with_the_nearest(tmp_path):
    (tmp_path / "people.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FileNotFoundError, match=r"did you mean .*people\.csv"):
        read_tables([tmp_path / "poeple.csv"], x="a", y="b")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_tables([tmp_path], x="a", y="b")


@pytest.mark.parametrize("kept", [30, 2_000])
def test_a_compressed_file_that_is_cut_short_is_refused(tmp_path, kept):
    rows = np.random.default_rng(0).normal(size=(5_000, 2))
    whole = gzip.compress(("a,b\n" + "\n".join(f"{a},{b}" for a, b in rows)).encode())
    (tmp_path / "a.csv.gz").write_bytes(whole[:kept])
    with pytest.raises(OSError, match=r"a\.csv\.gz"):
        read_tables([tmp_path / "a.csv.gz"], x="a", y="b")


def test_an_array_that_is_cut_short_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((100, 2)))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[:-200])
    with pytest.raises(OSError, match="cut short"):
        read_tables([tmp_path / "a.npy"], x="0", y="1")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"encode": "hot"}, "--encode hot"),
        ({"rows": 0}, "--rows 0"),
        ({"block": 1}, "--block 1"),
        ({"group": "b", "block": 2}, "by one"),
        ({"group": "a"}, "also in --x"),
        ({"group": "*"}, "names 3 columns"),
        ({"group": "c"}, "no value in row 2"),
        ({"group": "d"}, "no such column"),
        ({"header": False, "x": "a"}, "no such column"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, options, words):
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\n1,2,u\n4,5,\n")
    given = {"x": "a", "y": "b", **options}
    assert words in refused(path, **given)


def test_no_header_is_for_text(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((5, 2)))
    assert "--no-header" in refused(tmp_path / "a.npy", header=False)
