"""Columns of one or two files as numbers: formats, selections, encodings."""

import gzip

import numpy as np
import pytest

from flatnce.mi.reading import describe_columns, read_table, read_tables, select

pd = pytest.importorskip("pandas", reason="needs pandas: pip install 'flatnce[mi]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'flatnce[mi]'")

NAMES = ["age", "height (cm)", "mass, kg", "emb_0", "emb_1", "emb_2", "city"]

# As it leaves a spreadsheet: spaces and units in names, missing cells, dates, words.
PEOPLE = """\
,Visit date,Height (cm),"Mass, kg",Speed [m/s],smoker,city,emb_0,emb_1
0,2024-01-05,180.5,80,1.5,True,Lyon,0.1,1
1,2024-01-06,,71.2,1.25,False,Oslo,0.2,2
2,2024-02-10,165,NA,?,False,"Paris, France",0.3,3
3,2024-03-01,171,64,-,True,,0.4,4
4,2024-03-02, 190 ,99.9,2,True,Lyon,0.5,5
"""


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(PEOPLE, encoding="utf-8")
    return path


@pytest.fixture
def numbers():
    return np.random.default_rng(0).normal(size=(40, 4))


@pytest.mark.parametrize(
    "typed, places",
    [
        ("age", [0]),
        ("height (cm),age", [1, 0]),
        ("mass, kg", [2]),
        ("mass, kg,emb_*", [2, 3, 4, 5]),
        (" age , city ", [0, 6]),
        ("emb_?", [3, 4, 5]),
        ("emb_[12]", [4, 5]),
        ("age:emb_0", [0, 1, 2, 3]),
        ("emb_0:age", [3, 2, 1, 0]),
        ("height (cm):mass, kg", [1, 2]),
        ("0:2", [0, 1]),
        (":2,5:", [0, 1, 5, 6]),
        ("-1", [6]),
        ("3,emb_*", [3, 4, 5]),
    ],
)
def test_an_expression_names_columns(typed, places):
    assert select(typed, NAMES, "--x", "people.csv") == places


def test_a_name_that_is_there_wins_over_syntax():
    names = ["a:b", "a", "c", "b", "x*", "xy", "2"]
    assert select("a:b", names, "--x", "f") == [0]
    assert select("x*", names, "--x", "f") == [4]
    assert select("2", names, "--x", "f") == [6]


def test_ranges_of_numbered_columns_are_pythons_and_of_years_by_name():
    assert select("0:2", ["0", "1", "2"], "--x", "f") == [0, 1]
    assert select("2020:2021", ["2019", "2020", "2021"], "--x", "f") == [1, 2]


@pytest.mark.parametrize(
    "typed, words",
    [
        ("Hieght (cm)", "'height (cm)'"),
        ("AGE", "the nearest: 'age'"),
        ("zzzzzz", "it has 7 ('age'"),
        ("foo_*", "no such column"),
        ("12", "no such column"),
        ("4:2", "no such column"),
        (",", "names no column"),
    ],
)
def test_a_missing_column_is_named_with_the_nearest(typed, words):
    with pytest.raises(ValueError, match="--x") as raised:
        select(typed, NAMES, "--x", "people.csv")
    assert words in str(raised.value) and "people.csv" in str(raised.value)


def test_of_many_columns_only_some_are_listed():
    with pytest.raises(ValueError, match="and 288 more"):
        select("zzz", [f"column {i}" for i in range(300)], "--x", "f")


def test_a_realistic_csv_is_read(people):
    tables = read_tables([people], x="Height (cm),Mass, kg", y="Speed [m/s],smoker,emb_*")
    assert tables.x_names == ("Height (cm)", "Mass, kg")
    assert tables.y_names == ("Speed [m/s]", "smoker", "emb_0", "emb_1")
    np.testing.assert_array_equal(
        tables.x, [[180.5, 80], [np.nan, 71.2], [165, np.nan], [171, 64], [190, 99.9]]
    )
    np.testing.assert_array_equal(tables.y[:, 0], [1.5, 1.25, np.nan, np.nan, 2])
    np.testing.assert_array_equal(tables.y[:, 1], [1, 0, 0, 1, 1])
    assert tables.x.dtype == tables.y.dtype == np.float64
    assert tables.rows_in_file == 5 and tables.notes == ()


def test_without_y_it_is_all_other_numbers_and_that_is_said(people):
    tables = read_tables([people], x="emb_*")
    assert tables.y_names == ("Height (cm)", "Mass, kg", "Speed [m/s]", "smoker")
    (note,) = tables.notes
    assert "y is all other columns that hold numbers: 'Height (cm)'" in note
    assert "'Visit date' (dates)" in note and "'city' (words)" in note
    assert "'Unnamed: 0' (no name)" in note


def test_without_x_it_is_all_other_numbers(people):
    assert read_tables([people], y="emb_0").x_names[-1] == "emb_1"


def test_columns_are_described(people):
    kinds = {column.name: column.kind for column in describe_columns(people)}
    assert kinds["Visit date"] == "dates" and kinds["city"] == "words"
    assert kinds["smoker"] == "boolean" and kinds["Speed [m/s]"] == "number"


@pytest.mark.parametrize(
    "column, words",
    [("city", "'Lyon'"), ("city", "--encode one-hot"), ("Visit date", "2024-01-05")],
)
def test_words_and_dates_are_refused_unless_encoded(people, column, words):
    with pytest.raises(ValueError, match="--encode") as raised:
        read_tables([people], x=column, y="emb_0")
    assert column in str(raised.value) and words in str(raised.value)


def test_one_hot_makes_a_column_a_value_and_keeps_missing_cells(people):
    tables = read_tables([people], x="city", y="emb_0", encode="one-hot")
    assert tables.x_names == ("city=Lyon", "city=Oslo", "city=Paris, France")
    np.testing.assert_array_equal(tables.x[[0, 1, 2, 4]], np.eye(3)[[0, 1, 2, 0]])
    assert np.isnan(tables.x[3]).all()
    assert "'city' holds words" in tables.notes[0]


def test_ordinal_numbers_words_and_says_how(people):
    tables = read_tables([people], x="city", y="emb_0", encode="ordinal")
    np.testing.assert_array_equal(tables.x[:, 0], [0, 1, 2, np.nan, 0])
    assert "Lyon = 0, Oslo = 1" in tables.notes[0]


@pytest.mark.parametrize("encode", ["one-hot", "ordinal"])
def test_dates_become_days_since_the_first(people, encode):
    tables = read_tables([people], x="Visit date", y="emb_0", encode=encode)
    np.testing.assert_allclose(tables.x[:, 0], [0, 1, 36, 56, 57])
    assert "days since the first, 2024-01-05" in tables.notes[0]


def test_moments_within_a_day_become_seconds(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t,y\n2024-01-01 10:00:00,1\n2024-01-01 10:01:30,2\n")
    tables = read_tables([path], x="t", y="y", encode="ordinal")
    np.testing.assert_array_equal(tables.x[:, 0], [0, 90])
    assert "seconds since" in tables.notes[0]


def test_days_before_months_are_seen_where_they_can_be(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t,y\n01/02/2024,1\n13/02/2024,2\n20/02/2024,3\n")
    tables = read_tables([path], x="t", y="y", encode="ordinal")
    np.testing.assert_array_equal(tables.x[:, 0], [0, 12, 19])


@pytest.mark.parametrize(
    "first, second, days",
    [
        ("1/31/24", "2/1/24", 1),
        ("31.01.2024", "02.02.2024", 2),
        ("2024-03-04T00:00:00+02:00", "2024-03-05T00:00:00Z", 1 + 2 / 24),
        ("2024-03-04", "2024-03-09 12:00", 5.5),
        ("3 March 2024", "5 March 2024", 2),
    ],
)
def test_dates_are_read_as_they_are_written(tmp_path, first, second, days):
    path = tmp_path / "a.csv"
    path.write_text(f"t;y\n{first};1\n{second};2\n")
    tables = read_tables([path], x="t", y="y", encode="ordinal")
    in_days = tables.x[1, 0] / (86_400 if "seconds" in tables.notes[0] else 1)
    assert in_days == pytest.approx(days) and "either" not in tables.notes[0]


def test_times_of_day_are_seconds_and_name_no_day(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t,y\n10:30,1\n11:45,2\n")
    tables = read_tables([path], x="t", y="y", encode="ordinal")
    assert tables.x[1, 0] == 4_500 and tables.notes[0].endswith("since the first, 10:30:00.")


@pytest.mark.parametrize(
    "text",
    [
        "# made by a tool\n# on a day\na,b\n1,2\n3,4\n",
        "\n\na,b\n1,2\n3,4\n",
        "a,b\r\n1,2\r\n3,4\r\n\r\n",
        '"a",b,\n1,2,\n3,4,\n',
        "a,b\n1,2,\n3,4,\n",
        "a, b\n1, 2\n 3, 4\n",
        "a,b\n1,2\n3\N{NO-BREAK SPACE},4\n",
    ],
)
def test_text_as_tools_leave_it_is_read(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    tables = read_tables([path], x="a", y="b")
    np.testing.assert_array_equal(np.hstack([tables.x, tables.y]), [[1, 2], [3, 4]])


def test_a_name_over_two_lines_becomes_one_line(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('"height\n(cm)",b\n1,2\n3,4\n')
    assert read_tables([path], x="height (cm)", y="b").x.tolist() == [[1], [3]]


def test_a_typeset_minus_is_a_minus(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n\N{MINUS SIGN}1.5,2\n3,4\n", encoding="utf-8")
    assert read_tables([path], x="a", y="b").x.tolist() == [[-1.5], [3]]


def test_a_date_that_could_be_either_is_said(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t,y\n01/02/2024,1\n03/02/2024,2\n")
    assert "month" in read_tables([path], x="t", y="y", encode="ordinal").notes[0]


@pytest.mark.parametrize(
    "name, separator",
    [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t"), ("a.txt", "|"), ("a.txt", " ")],
)
def test_the_separator_is_found(tmp_path, name, separator):
    path = tmp_path / name
    path.write_text(
        "\n".join(separator.join(row) for row in (["a", "b"], ["1.5", "2"], ["3", "4"]))
    )
    np.testing.assert_array_equal(read_tables([path], x="a", y="b").x, [[1.5], [3]])


def test_compressed_text_is_read(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n3,4\n"))
    np.testing.assert_array_equal(read_tables([path], x="a", y="b").y, [[2], [4]])


def test_decimal_commas_of_a_spreadsheet_are_read_and_said(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;b\n1,5;2\n3,25;4\n")
    tables = read_tables([path], x="a", y="b")
    np.testing.assert_array_equal(tables.x[:, 0], [1.5, 3.25])
    assert "comma" in tables.notes[0]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_text_of_other_encodings_is_read(tmp_path, encoding):
    path = tmp_path / "a.csv"
    path.write_bytes("größe,b\n1,2\n3,4\n".encode(encoding))
    assert read_tables([path], x="größe", y="b").x_names == ("größe",)


def test_a_header_as_numpy_writes_it_is_read(tmp_path, numbers):
    path = tmp_path / "a.txt"
    np.savetxt(path, numbers, header="a b c d")
    np.testing.assert_allclose(read_tables([path], x="a", y="d").x[:, 0], numbers[:, 0])


def test_text_without_a_header_is_read_by_number(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1,2,3\n4,5,6\n")
    tables = read_tables([path], x="0:2", y="2", header=False)
    np.testing.assert_array_equal(tables.x, [[1, 2], [4, 5]])


def test_columns_called_by_counting_numbers_are_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("0,1,2\n4,5,6\n7,8,9\n")
    assert len(read_tables([path], x="0:2", y="2").x) == 2


def test_parquet_is_read_by_column(tmp_path):
    path = tmp_path / "a.parquet"
    days = pd.to_datetime(["2024-01-01", "2024-01-03", None])
    flags, words = [True, None, False], pd.Categorical(["u", "v", "u"])
    columns = {"a": [1, 2, None], "f": flags, "day": days, "w": words, "s": ["1", "?", "2.5"]}
    pd.DataFrame(columns).to_parquet(path)
    tables = read_tables([path], x="a,f,s", y="day,w", encode="ordinal")
    nan = np.nan
    np.testing.assert_array_equal(tables.x, [[1, 1, 1], [2, nan, nan], [nan, 0, 2.5]])
    np.testing.assert_array_equal(tables.y, [[0, 0], [2, 1], [nan, 0]])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int16", "bool"])
def test_npy_is_read_by_number(tmp_path, numbers, dtype):
    array = (10 * numbers).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    tables = read_tables([tmp_path / "a.npy"], x="0,2", y="3")
    np.testing.assert_array_equal(tables.x, array[:, [0, 2]].astype(float))
    assert tables.y_names == ("3",)


def test_two_files_are_partners_by_position(tmp_path, numbers):
    np.save(tmp_path / "x.npy", numbers[:, :3])
    (tmp_path / "y.csv").write_text("b\n" + "\n".join(map(repr, numbers[:, 3].tolist())))
    tables = read_tables([tmp_path / "x.npy", tmp_path / "y.csv"])
    np.testing.assert_array_equal(tables.x, numbers[:, :3])
    np.testing.assert_array_equal(tables.y, numbers[:, 3:])


def test_npz_with_x_and_y_needs_no_choice(tmp_path, numbers):
    np.savez(tmp_path / "a.npz", X=numbers[:, :3], y=numbers[:, 3])
    tables = read_tables([tmp_path / "a.npz"])
    np.testing.assert_array_equal(tables.x, numbers[:, :3])
    np.testing.assert_array_equal(tables.y, numbers[:, 3:])


def test_npz_arrays_are_chosen_by_name_and_column(tmp_path, numbers):
    np.savez_compressed(tmp_path / "a.npz", emb=numbers[:, :3], label=numbers[:, 3])
    tables = read_tables([tmp_path / "a.npz"], x="emb_0,emb_2", y="label")
    np.testing.assert_array_equal(tables.x, numbers[:, [0, 2]])
    assert read_tables([tmp_path / "a.npz"], x="emb", y="label").x_names[-1] == "emb_2"


def test_npz_of_one_array_is_as_npy(tmp_path, numbers):
    np.savez(tmp_path / "a.npz", numbers)
    assert read_tables([tmp_path / "a.npz"], x="0", y="1:").y_names == ("1", "2", "3")


def test_groups_are_numbers_for_equal_values(people):
    tables = read_tables([people], x="Height (cm)", y="emb_*", group="smoker")
    np.testing.assert_array_equal(tables.group, [1, 0, 0, 1, 1])


def test_the_group_is_left_out_of_what_is_chosen_by_default(people):
    assert "smoker" not in read_tables([people], x="emb_*", group="smoker").y_names


def test_blocks_are_passed_on(people):
    tables = read_tables([people], x="Height (cm)", y="emb_*", block=2)
    assert tables.block == 2 and tables.group is None


def test_one_table_is_all_numbers_or_what_is_chosen(people):
    table = read_table(people)
    assert table.names[:2] == ("Height (cm)", "Mass, kg") and table.values.shape == (5, 6)
    assert "The table is all columns that hold numbers" in table.notes[0]
    assert read_table(people, "emb_*", rows=2).values.shape == (2, 2)


def test_a_table_without_numbers_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("u,v\nx,y\nz,w\n")
    with pytest.raises(ValueError, match="no columns with numbers"):
        read_table(tmp_path / "a.csv")
