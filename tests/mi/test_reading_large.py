"""Files that are large: refused before they are read, streamed, or sampled."""

import numpy as np
import pytest

from flatnce.mi.reading import delimited, parquet, read_tables
from flatnce.mi.reading.memory import available_bytes, check_fits
from flatnce.mi.reading.source import Sample

pd = pytest.importorskip("pandas", reason="needs pandas: pip install 'flatnce[mi]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'flatnce[mi]'")

ROWS, COLUMNS = 5_000, 6


@pytest.fixture(scope="module")
def frame():
    values = np.random.default_rng(1).normal(size=(ROWS, COLUMNS)).round(6)
    return pd.DataFrame(values, columns=list("abcdef"))


@pytest.fixture(scope="module", params=["csv", "csv.gz", "parquet", "npy", "npz"])
def file(request, frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / f"a.{request.param}"
    if request.param.startswith("csv"):
        frame.to_csv(path, index=False)
    elif request.param == "parquet":
        frame.to_parquet(path, row_group_size=700)
    elif request.param == "npy":
        np.save(path, frame.to_numpy())
    else:
        np.savez(path, frame.to_numpy())
    return path


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(delimited, "CHUNK_CELLS", 10)  # at least 1,000 rows all the same
    monkeypatch.setattr(parquet, "BATCH_ROWS", 300)


def test_a_file_that_does_not_fit_is_refused_before_it_is_read(file, monkeypatch):
    for kind in (delimited.DelimitedFile, parquet.ParquetFile):
        monkeypatch.setattr(kind, "read", lambda *_: pytest.fail("it was read"))
    with pytest.raises(ValueError, match="of memory") as raised:
        read_tables([file], x="0:3", y="3:6", memory=50_000)
    said = str(raised.value)
    assert "50 kB are free" in said and "--rows" in said and "parquet" in said


def test_fewer_columns_or_rows_of_it_do(file):
    assert read_tables([file], x="0", y="1", rows=50, memory=1_500_000).x.shape == (50, 1)


def test_a_file_in_pieces_is_the_file(file, frame, small_pieces):
    tables = read_tables([file], x="4,0", y="1:3")
    np.testing.assert_array_equal(tables.x, frame[["e", "a"]].to_numpy())
    np.testing.assert_array_equal(tables.y, frame[["b", "c"]].to_numpy())


def test_a_sample_is_the_same_rows_of_every_format(file, frame, small_pieces):
    tables = read_tables([file], x="0:3", y="3:", rows=200, seed=7)
    chosen = Sample(200, 7).chosen(ROWS)
    np.testing.assert_array_equal(np.hstack([tables.x, tables.y]), frame.to_numpy()[chosen])
    assert tables.rows_in_file == ROWS
    assert "200 of 5,000 rows were taken at random (seed 7)." in tables.notes


def test_another_seed_is_another_sample():
    assert not np.array_equal(Sample(50, 0).chosen(ROWS), Sample(50, 1).chosen(ROWS))


def test_a_sample_of_more_than_there_is_is_all(file):
    tables = read_tables([file], x="0", y="1", rows=10 * ROWS)
    assert len(tables.x) == ROWS and not any("random" in note for note in tables.notes)


def test_blocks_of_a_sample_are_stretches_of_the_file(file):
    tables = read_tables([file], x="0", y="1", rows=100, block=1_000)
    np.testing.assert_array_equal(tables.group, Sample(100, 0).chosen(ROWS) // 1_000)
    assert tables.block is None


def test_a_word_late_in_a_long_file_is_found_with_its_row(tmp_path, frame, small_pieces):
    text = frame.astype(object)
    text.loc[3_999, "b"] = "broken"
    text.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(ValueError, match=r"'b' .* row 4,000 of the data holds 'broken'"):
        read_tables([tmp_path / "a.csv"], x="a", y="b")


def test_the_system_says_how_much_is_free():
    free = available_bytes()
    assert free is None or free > 1_000_000


def test_where_the_system_says_nothing_nothing_is_refused():
    check_fits(10**15, None, "a.csv")
