"""Tables from files: formats, selections, encodings, samples and refusals."""

import gzip
import pickle
import re
import zipfile
from unittest.mock import Mock

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="needs pandas: pip install 'flatnce[mi]'")
arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'flatnce[mi]'")

import pyarrow.parquet  # noqa: F401

from flatnce.mi import tables as module
from flatnce.mi.encoding import KINDS, encode
from flatnce.mi.tables import describe_columns, read_tables, select

NAMES = ["age", "height (cm)", "mass, kg", "emb_0", "emb_1", "emb_2", "city"]

# As a spreadsheet exports it: spaces and units in names, missing cells, dates, words.
PEOPLE = """\
,Visit date,Height (cm),"Mass, kg",Speed [m/s],smoker,city,emb_0,emb_1
0,2024-01-05,180.5,80,1.5,True,Lyon,0.1,1
1,2024-01-06,,71.2,1.25,False,Oslo,0.2,2
2,2024-02-10,165,NA,?,False,"Paris, France",0.3,3
3,2024-03-01,171,64,-,True,,0.4,4
4,2024-03-02, 190 ,99.9,2,True,Lyon,0.5,5
"""


@pytest.fixture
def text_file(tmp_path):
    """Write text to a file and return its path."""

    def write(text, name="a.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return write


@pytest.fixture
def people(text_file):
    return text_file(PEOPLE, "people.csv")


@pytest.fixture
def numbers():
    return np.random.default_rng(0).normal(size=(40, 4))


def equal(table, values):
    np.testing.assert_array_equal(np.asarray(table), values)


def refusal(path, x="0", y="1", **options):
    with pytest.raises((ValueError, OSError)) as raised:
        read_tables(path if isinstance(path, list) else [path], x=x, y=y, **options)
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "typed, names, places",
    [
        ("age", NAMES, [0]),
        ("height (cm),age", NAMES, [1, 0]),
        ("mass, kg", NAMES, [2]),
        ("mass, kg,emb_*", NAMES, [2, 3, 4, 5]),
        (" age , city ", NAMES, [0, 6]),
        ("emb_?", NAMES, [3, 4, 5]),
        ("emb_[12]", NAMES, [4, 5]),
        ("age:emb_0", NAMES, [0, 1, 2, 3]),
        ("emb_0:age", NAMES, [3, 2, 1, 0]),
        ("height (cm):mass, kg", NAMES, [1, 2]),
        ("0:2", NAMES, [0, 1]),
        (":2,5:", NAMES, [0, 1, 5, 6]),
        ("-1", NAMES, [6]),
        ("3,emb_*", NAMES, [3, 4, 5]),
        # A name that exists takes precedence over syntax.
        ("a:b", ["a:b", "a", "c", "b"], [0]),
        ("x*", ["a", "x*", "xy"], [1]),
        ("2", ["a", "b", "c", "2"], [3]),
        ("0:2", ["0", "1", "2"], [0, 1]),
        ("2020:2021", ["2019", "2020", "2021"], [1, 2]),
    ],
)
def test_an_expression_names_columns(typed, names, places):
    assert select(typed, names, "--x", "people.csv") == places


@pytest.mark.parametrize(
    "typed, words",
    [
        ("Hieght (cm)", "did you mean 'height (cm)'"),
        ("zzzzzz", "it has 7 ('age'"),
        ("foo_*", "no such column"),
        ("12", "no such column"),
        ("4:2", "no such column"),
    ],
)
def test_a_missing_column_is_reported_with_the_nearest_name(typed, words):
    with pytest.raises(ValueError, match="--x") as raised:
        select(typed, NAMES, "--x", "people.csv")
    assert words in str(raised.value) and "people.csv" in str(raised.value)


def test_a_realistic_csv_is_read(people):
    tables = read_tables([people], x="Height (cm),Mass, kg", y="Speed [m/s],smoker,emb_*")
    assert list(tables.x) == ["Height (cm)", "Mass, kg"]
    assert list(tables.y) == ["Speed [m/s]", "smoker", "emb_0", "emb_1"]
    nan = np.nan
    equal(tables.x, [[180.5, 80], [nan, 71.2], [165, nan], [171, 64], [190, 99.9]])
    equal(tables.y.iloc[:, :2], [[1.5, 1], [1.25, 0], [nan, 0], [nan, 1], [2, 1]])
    assert {*tables.x.dtypes, *tables.y.dtypes} == {np.dtype("float64")}
    assert tables.notes == ()


def test_a_table_may_have_thousands_of_columns(text_file):
    names = [f"expression of gene {number:05d}" for number in range(6_000)]
    path = text_file("\n".join([",".join(names), *[",".join("12" * 3_000)] * 3]))
    assert len(",".join(names)) > 131_072  # the longest field that csv reads by default
    tables = read_tables([path], x=names[0], y=names[-1])
    equal(tables.x, [[1]] * 3)
    equal(tables.y, [[2]] * 3)


def test_without_y_all_other_numeric_columns_are_used_and_reported(people):
    tables = read_tables([people], x="emb_*")
    assert list(tables.y) == ["Height (cm)", "Mass, kg", "Speed [m/s]", "smoker"]
    (note,) = tables.notes
    assert "y is all other columns that hold numbers: 'Height (cm)'" in note
    assert "'Visit date' (date)" in note and "'city' (category)" in note
    assert "'Unnamed: 0' (number)" in note
    assert list(read_tables([people], y="emb_0").x)[-1] == "emb_1"
    assert "smoker" not in read_tables([people], x="emb_*", group="smoker").y


def test_columns_are_described(people, text_file):
    kinds = {column["name"]: column["kind"] for column in describe_columns(people)}
    assert kinds["Visit date"] == "date" and kinds["city"] == "category"
    assert kinds["smoker"] == "number" and kinds["Speed [m/s]"] == "number"
    text = 'a,b,c,d,e\n,1,5 kg,"1,000",info\n,2,6 kg,"2,000",infra\n,x,7 kg,3,inf.\n'
    kinds = [column["kind"] for column in describe_columns(text_file(text))]
    assert kinds == ["empty", *["numbers and text"] * 3, "category"]
    text = 'a,b,c,d\n"$2,586",-€ 5,<5,"(0, 10]"\n"$1,200",€ 7,6,"(10, 20]"\n'
    kinds = [column["kind"] for column in describe_columns(text_file(text))]
    assert kinds == [*["numbers and text"] * 3, "category"]
    with pytest.raises(ValueError, match=r"'a' .*: row 1 .* holds '\$2,586', which is not"):
        read_tables([text_file(text)], x="a", alone=True)


def test_one_table_holds_all_numbers_or_the_chosen_columns(people, text_file):
    tables = read_tables([people], alone=True, group="emb_1")
    assert list(tables.x)[:2] == ["Height (cm)", "Mass, kg"] and tables.x.shape == (5, 5)
    assert "x is all other columns that hold numbers" in tables.notes[0]
    tables = read_tables([people], x="emb_*", alone=True, rows=2)
    assert tables.x.shape == (2, 2)
    assert tables.notes == ("2 of 5 rows were taken at random (seed 0).",)
    with pytest.raises(ValueError, match="no columns with numbers"):
        read_tables([text_file("u,v\nx,y\nz,w\n")], alone=True)


def test_columns_that_are_studied_one_by_one_hold_words_and_dates_too(text_file):
    rows = range(60)
    columns = {
        "day": [f"2024-03-{1 + row % 30:02d}" for row in rows],
        "town": [("New York", "Oslo")[row % 2] for row in rows],
        "id": [f"P{row}" for row in rows],
        "land": ["Chile"] * 60,
        "rare": [str(row) if row < 5 else "" for row in rows],
        "size": [f"{row % 5} kg" for row in rows],
        "dose": [f"{row % 7}" for row in rows],
        "sick": ["yes" if row % 3 else "no" for row in rows],
    }
    lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
    path = text_file("\n".join(lines))
    ranked = read_tables([path], y="sick", each=True)
    assert list(ranked.parts[0]) == ["day", "town", "dose"]
    assert list(ranked.parts[0]["town"]) == ["town=New York", "town=Oslo"]
    chosen, unfit = ranked.notes
    assert chosen == (
        "x is all other columns: 'day', 'town', 'id', 'land', 'rare', 'dose'. "
        "Left out: 'size' (numbers and text)."
    )
    assert unfit == (
        "Of these, left out: 'id' (60 different words), 'land' (one value), 'rare' (5 values)."
    )
    series = text_file(
        "\n".join(
            ["when,t,a,b,late,same"]
            + [
                f"2024-01-01 {row // 60}:{row % 60:02d},{row},{row % 7},u{row // 30},{row // 45},1"
                for row in range(90)
            ]
        ),
        "s.csv",
    )
    whole = read_tables([series], alone=True, each=True)
    assert list(whole.parts[0]) == ["when", "t", "a", "b", "late"]
    told = read_tables([series], alone=True, each=True, series=True)
    assert list(told.parts[0]) == ["a", "b", "late"]
    assert all(
        w in told.notes[1] for w in ("'t' (in the order of the rows)", "'same' (one value)")
    )
    # What --kind names takes part.
    table = read_tables([path], alone=True, each=True, kinds="size=category,id=ordinal")
    assert list(table.parts[0]) == ["day", "town", "id", "size", "dose", "sick"]


# --- Kinds ---------------------------------------------------------------------------------------


def test_words_become_categories_and_missing_cells_stay_missing(people):
    tables = read_tables([people], x="city,emb_1", y="emb_0")
    assert list(tables.x) == ["city=Lyon", "city=Oslo", "city=Paris, France", "emb_1"]
    assert list(tables.parts[0]) == ["city", "emb_1"]
    equal(tables.x.iloc[[0, 1, 2, 4], :3], np.eye(3)[[0, 1, 2, 0]])
    assert np.isnan(tables.x.iloc[3, :3]).all()
    assert "category of 3 values ('city')" in tables.kinds
    tables = read_tables([people], x="city", y="emb_0", kinds="city=ordinal", group="smoker")
    equal(tables.x["city"], [0, 1, 2, np.nan, 0])
    assert "ordinal, Lyon = 0, Oslo = 1" in tables.kinds
    equal(tables.group, [1, 0, 0, 1, 1])


def test_numbers_are_categories_if_one_says_so(text_file):
    path = text_file("code,b\n" + "".join(f"{k % 3},{k}\n" for k in range(9)))
    tables = read_tables([path], x="code", y="b", kinds={"code": "category"})
    equal(tables.x, np.eye(3)[np.arange(9) % 3])
    assert "category of 3 values ('code')" in tables.kinds


@pytest.mark.parametrize(
    "kinds, width",
    [
        ("mass, kg=category", {"mass, kg": 3, "p=5": 1, "n": 1}),
        ("n=number, mass, kg=category,p=5=category", {"mass, kg": 3, "p=5": 2, "n": 1}),
        ("mass, kg,n=category", {"mass, kg": 3, "p=5": 1, "n": 3}),
        ("0=category", {"mass, kg": 3, "p=5": 1, "n": 1}),
        ({"mass, kg": "category"}, {"mass, kg": 3, "p=5": 1, "n": 1}),
    ],
)
def test_a_name_with_a_comma_or_an_equals_sign_has_a_kind(text_file, kinds, width):
    path = text_file('"mass, kg",p=5,n,y\n1,0,5,1\n2,1,6,2\n3,1,7,3\n')
    parts = read_tables([path], y="y", kinds=kinds).parts[0]
    assert {name: part.shape[1] for name, part in parts.items()} == width


@pytest.mark.parametrize(
    "kinds, said",
    [
        ({"w": "circle"}, "kind='circle' is unknown; did you mean 'circular'"),
        ({"w": "circle:360"}, "kind='circle' is unknown"),
        ({"s": "Category"}, "kind='Category' is unknown; did you mean 'category'"),
        ({"q": "category"}, "column='q' is unknown; choose one of w, s"),
    ],
)
def test_encode_refuses_kinds_and_columns_that_it_does_not_know(kinds, said):
    with pytest.raises(ValueError, match=said):
        encode(pd.DataFrame({"w": [0, 90, 180], "s": [1, 2, 1]}), kinds)


def test_columns_that_are_named_by_numbers_have_kinds():
    table = pd.DataFrame([[1, 2], [2, 9]], columns=[2020, 2021])
    assert list(encode(table, {2021: "category"})) == ["2020", "2021=2", "2021=9"]


def test_ordinal_numbers_are_in_the_order_of_their_size():
    equal(encode(pd.DataFrame({"stage": [9, 10, 2]}), {"stage": "ordinal"}), [[9], [10], [2]])


@pytest.mark.parametrize(
    "values, kind, period",
    [
        ([0, 90, 180, 350], "circular", 360),
        ([-170, 0, 90, 179], "circular", 360),
        ([0, 6, 12, 23], "circular:24", 24),
        ([1, 4, 12, 7], "circular:12", 12),
    ],
)
def test_angles_become_points_on_a_circle(values, kind, period):
    table = encode(pd.DataFrame({"angle": values, "z": 1.5}, index=list("abcd")), {"angle": kind})
    turns = 2 * np.pi * np.array(values) / period
    assert list(table) == ["angle (cos)", "angle (sin)", "z"] and list(table.index) == list("abcd")
    np.testing.assert_allclose(table.iloc[:, 0], np.cos(turns))
    np.testing.assert_allclose(table.iloc[:, 1], np.sin(turns))


@pytest.mark.parametrize("values", [[0, 6, 12, 23], [0, 90, 180, 200], [0, 100, 400, 700]])
def test_a_period_is_not_guessed_from_values_that_do_not_fill_a_circle(values):
    with pytest.raises(
        ValueError, match=r"^--kind angle=circular: .* values from 0 .*angle=circular:360"
    ):
        encode(pd.DataFrame({"angle": values}), {"angle": "circular"})


def test_a_column_that_looks_like_an_angle_is_a_number_unless_one_says_otherwise(text_file):
    path = text_file("angle,b\n" + "".join(f"{10 * k}.5,{k}.5\n" for k in range(36)))
    tables = read_tables([path], x="angle", y="b")
    assert list(tables.x) == ["angle"] and tables.kinds == "Kinds: number ('angle', 'b')."


def test_kinds_are_said_in_one_line(text_file):
    random = np.random.default_rng(0)
    table = pd.DataFrame({"children": random.integers(0, 5, 99), "sex": np.arange(99) % 2})
    table["rain"] = np.where(random.random(99) < 0.6, 0.0, random.random(99).round(3))
    for name in ("a", "b", "c", "d", "e"):
        table[name] = random.normal(size=99).round(3)
    table["day"] = pd.date_range("2024-01-01", periods=99).astype(str)
    table["site"] = ["u", "v", "w"] * 33
    path = text_file(table.to_csv(index=False))
    tables = read_tables([path], x="children:e", y="day,site")
    share = (table["rain"] == 0).mean()
    wanted = [
        "whole number of few values ('children')",
        "number of two values ('sex')",
        f"number, {share:.0%} of them 0 ('rain')",
        "number ('a', 'b', 'c' and 2 more)",
        "date in days since the first ('day')",
        "category of 3 values ('site')",
    ]
    assert tables.kinds == f"Kinds: {'; '.join(wanted)}."
    # Each says the kind that the list of columns says, which is one that --kind takes.
    listed = {column["name"]: column["kind"] for column in describe_columns(path)}
    for said in wanted:
        assert listed[re.findall(r"'(\w+)'", said)[0]] in set(re.findall(r"\w+", said)) & {*KINDS}


@pytest.mark.parametrize(
    "kinds, words",
    [
        ("b=hot", r"kind='hot' is unknown"),
        ("b", r"^--kind b has no kind; give COLUMN=KIND, as in b=category"),
        ("b=number,c", r"^--kind c has no kind; give COLUMN=KIND"),
        ("bb=category", r"--kind 'bb'.*no such column"),
        (
            "c=number",
            r"'c' \(category\): row 1 of the data holds 'u', which is not a number \("
            r"2 of 2 cells are not numbers\); write units",
        ),
        (
            "b=date",
            r"'b' \(number\): .* not a date \(2 of 2 cells are not dates\).*--kind b=category",
        ),
        ("c=circular:7", r"'u', which is not a number \(2 of 2 cells are not numbers\);"),
        ("b=circular:x", r"^--kind b=circular:x: .*--kind b=circular:360"),
        ("b=circular:inf", r"^--kind b=circular:inf: "),
        ("d=number", r"--kind d=number: the column holds dates; leave --kind out for the date in"),
        ("d=circular", r"^--kind d=circular: the column holds dates; .* or give circular:PERIOD"),
    ],
)
def test_kinds_that_make_no_sense_are_refused(text_file, kinds, words):
    with pytest.raises(ValueError, match=words):
        path = text_file("a,b,c,d\n1,2,u,2024-01-01\n4,5,v,2024-01-02\n")
        read_tables([path], x="a", y="b,c,d", kinds=kinds)


@pytest.mark.parametrize("as_text", [True, False])
def test_dates_are_a_circle_if_one_says_so(as_text):
    days = pd.Series(pd.date_range("2024-01-01", periods=340))  # nearly a circle of degrees
    table = pd.DataFrame({"when": days.astype(str) if as_text else days})
    turns = 2 * np.pi * np.arange(340) / 7
    found = encode(table, {"when": "circular:7"})
    np.testing.assert_allclose(found, np.stack([np.cos(turns), np.sin(turns)], 1), atol=1e-12)
    with pytest.raises(ValueError, match="or give circular:PERIOD"):
        encode(table, {"when": "circular"})
    with pytest.raises(ValueError, match="--kind when=number: the column holds dates"):
        encode(table, {"when": "number"})


def test_durations_are_a_circle_if_one_says_so():
    table = pd.DataFrame({"t": pd.to_timedelta([0, 6, 12], unit="h")})
    found = encode(table, {"t": "circular:86400"})
    np.testing.assert_allclose(found.iloc[:, 0], [1, 0, -1], atol=1e-12)
    np.testing.assert_allclose(encode(table)["t"], [0, 21_600, 43_200])
    with pytest.raises(ValueError, match="--kind t=date: the column holds durations"):
        encode(table, {"t": "date"})


def test_too_many_words_are_no_category(text_file):
    path = text_file("a,b\n" + "".join(f"word {k},{k}\n" for k in range(51)))
    assert "--kind a=ordinal" in refusal(path)


@pytest.mark.parametrize(
    "dates, values, words",
    [
        (["2024-01-05", "2024-01-06", "2024-02-10"], [0, 1, 36], "days since the first"),
        (["2024-01-01 10:00:00", "2024-01-01 10:01:30"], [0, 90], "seconds since"),
        (["01/02/2024", "13/02/2024", "20/02/2024"], [0, 12, 19], "days since"),
        (["1/31/24", "2/1/24"], [0, 1], "days since"),
        (["31.01.2024", "02.02.2024"], [0, 2], "days since"),
        (["2024-03-04T00:00:00+02:00", "2024-03-05T00:00:00Z"], [0, 93_600], "seconds since"),
        (["2024-03-04", "2024-03-09 12:00"], [0, 5.5], "days since"),
        (["3 March 2024", "5 March 2024"], [0, 2], "days since"),
        (["10:30", "11:45"], [0, 4_500], "seconds since the first"),
        (["01/02/2024", "03/02/2024"], [0, 60], "the month read before the day, which is a guess"),
    ],
)
def test_dates_become_the_time_since_the_first(text_file, dates, values, words):
    path = text_file("t;y\n" + "".join(f"{date};{i}\n" for i, date in enumerate(dates)))
    tables = read_tables([path], x="t", y="y")
    np.testing.assert_allclose(tables.x["t"], values)
    assert words in tables.kinds and ("guess" in words) == ("guess" in tables.kinds)


@pytest.mark.parametrize(
    "text",
    [
        "# made by a tool\n# on a day\na,b\n1,2\n3,4\n",
        "\n\na,b\n1,2\n3,4\n",
        "a,b\r\n1,2\r\n3,4\r\n\r\n",
        '"a",b,\n1,2,\n3,4,\n',
        "a,b\n1,2,\n3,4,\n",
        "a,b,\n1,2\n3,4\n",
        "a, b\n1, 2\n 3, 4\n",
        "a,b\n1,2\n3\N{NO-BREAK SPACE},4\n",
        "a;b\n1;2\n3;4\n",
        "a|b\n1|2\n3|4",
        "a\tb\n1\t2\n3\t4",
        "a b\n1 2\n3 4",
        '"a",b\n1,2\n"3",4\n',
    ],
)
def test_text_as_tools_write_it_is_read(text_file, text):
    tables = read_tables([text_file(text)], x="a", y="b")
    equal(np.hstack([tables.x, tables.y]), [[1, 2], [3, 4]])


def test_decimal_commas_are_read_and_reported(text_file):
    tables = read_tables([text_file("a;b\n1,5;2\n3,25;4\n")], x="a", y="b")
    equal(tables.x, [[1.5], [3.25]])
    assert "decimal commas" in tables.notes[0]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_text_of_other_encodings_is_read_and_a_guess_is_noted(text_file, encoding):
    tables = read_tables([text_file("größe,b\n1,2\n3,4\n", encoding=encoding)], x="größe", y="b")
    assert list(tables.x) == ["größe"] and len(tables.notes) == (encoding == "cp1252")


def test_parquet_is_read_by_column(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {
        "a": [1, 2, None],
        "f": [True, None, False],
        "day": pd.to_datetime(["2024-01-01", "2024-01-03", None]),
        "w": pd.Categorical(["u", "v", "u"]),
        "s": ["1", "?", "2.5"],
        "d": pd.to_timedelta(["1 min", None, "2 s"]),
        "late": [np.nan] * 3,
    }
    pd.DataFrame(columns).to_parquet(path)
    tables = read_tables([path], x="a,f,s,d,late", y="day,w", kinds="w=ordinal")
    nan = np.nan
    equal(tables.x, [[1, 1, 1, 60, nan], [2, nan, nan, nan, nan], [nan, 0, 2.5, 2, nan]])
    equal(tables.y, [[0, 0], [2, 1], [nan, 0]])
    kinds = [column["kind"] for column in describe_columns(path)]
    assert kinds == ["number", "number", "date", "category", "number", "duration", "empty"]


def test_the_index_that_pandas_stores_in_parquet_is_a_column(tmp_path):
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [2.0, 1.0, 0.0]})
    for name, index in (("day", pd.date_range("2024", periods=3)), (None, [5, 7, 6])):
        table.set_index(pd.Index(index, name=name)).to_parquet(tmp_path / "a.parquet")
        tables = read_tables([tmp_path / "a.parquet"], y="b")
        assert list(tables.x) == ["a"] and "Left out: '" in tables.notes[0]
    assert read_tables([tmp_path / "a.parquet"], x="__index_level_0__", y="b").x.iloc[1, 0] == 7


def test_columns_of_parquet_with_one_name_are_refused(tmp_path):
    column = arrow.array([1.0, 2.0])
    arrow.parquet.write_table(arrow.table([column] * 2, ["a", "a"]), tmp_path / "a.parquet")
    assert "has several columns named 'a'; rename them" in refusal(tmp_path / "a.parquet")


def test_parquet_without_rows_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"a": [1.0], "b": [2.0]}).iloc[:0].to_parquet(path)
    for function in (describe_columns, lambda path: read_tables([path], x="a", y="b")):
        with pytest.raises(ValueError, match=r"a\.parquet has no rows; write it again"):
            function(path)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int16", "bool"])
def test_npy_is_read_by_number(tmp_path, numbers, dtype):
    array = (10 * numbers).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    tables = read_tables([tmp_path / "a.npy"], x="0,2", y="3")
    equal(tables.x, array[:, [0, 2]].astype(float))
    assert list(tables.y) == ["3"]


def test_two_files_are_partners_by_position(tmp_path, text_file, numbers):
    np.save(tmp_path / "x.npy", numbers[:, :3])
    eighths = np.round(8 * numbers[:, 3:]) / 8  # pandas before 3.1 may miss the last bit of others
    path = text_file("b\n" + "\n".join(map(repr, eighths[:, 0].tolist())))
    tables = read_tables([tmp_path / "x.npy", path])
    equal(tables.x, numbers[:, :3])
    equal(tables.y, eighths)


def test_npz_with_x_and_y_needs_no_choice(tmp_path, numbers):
    np.savez(tmp_path / "a.npz", X=numbers[:, :3], y=numbers[:, 3])
    tables = read_tables([tmp_path / "a.npz"])
    equal(tables.x, numbers[:, :3])
    equal(tables.y, numbers[:, 3:])


def test_a_single_number_in_an_archive_is_no_column(tmp_path, numbers):
    np.savez(tmp_path / "xy.npz", x=numbers[:, :2], y=numbers[:, 2], temperature=0.1)
    tables = read_tables([tmp_path / "xy.npz"])
    equal(tables.x, numbers[:, :2])
    equal(tables.y, numbers[:, 2:3])


def test_npz_arrays_are_chosen_by_name_and_column(tmp_path, numbers):
    np.savez_compressed(tmp_path / "a.npz", emb=numbers[:, :3], label=numbers[:, 3])
    tables = read_tables([tmp_path / "a.npz"], x="emb_0,emb_2", y="label")
    equal(tables.x, numbers[:, [0, 2]])
    assert list(read_tables([tmp_path / "a.npz"], x="emb", y="label").x)[-1] == "emb_2"


def embeddings(path, numbers):
    """The arrays that `flatnce embed` writes, and one of other rows."""
    rows = len(numbers)
    words = {
        "files": np.array([f"a/{i}.png" for i in range(rows)]),
        "classes": np.array(["a", "b"]),
    }
    means = numbers[:2, :3]
    np.savez(path, **words, embeddings=numbers[:, :3], labels=np.arange(rows) % 2, means=means)
    return path


def test_arrays_of_an_archive_that_are_not_selected_are_ignored(tmp_path, numbers):
    path = embeddings(tmp_path / "a.npz", numbers)
    tables = read_tables([path], x="embeddings", y="labels")
    equal(tables.x, numbers[:, :3])
    equal(tables.y, np.arange(len(numbers))[:, None] % 2)
    np.savez(tmp_path / "b.npz", embeddings=numbers[:, :3], files=np.array(["a", "b"]))
    equal(read_tables([tmp_path / "b.npz"], x="embeddings", alone=True).x, numbers[:, :3])


def test_arrays_of_an_archive_that_cannot_be_selected_say_why(tmp_path, numbers):
    path = embeddings(tmp_path / "a.npz", numbers)
    assert "array 'files' of" in refusal(path, "embeddings", "labels,files")
    assert "dtype <U1 and shape (2,); save real numbers" in refusal(path, "classes", "labels")
    listing = f"'embeddings' {len(numbers)}, 'means' 2"
    assert listing in refusal(path, "embeddings", "means")


def test_a_kind_of_a_column_that_is_not_selected_is_noted(text_file):
    rows = "\n".join(f"{row % 7},{row % 5},{row % 360},{row % 3}" for row in range(90))
    path = text_file(f"temp,y,wind,site\n{rows}")
    chosen = {"x": "temp", "y": "y"}
    for typed in ("wind=circular:360", "temp=number,wind=circular:360", "y=number,wind=number"):
        found = read_tables([path], **chosen, kinds=typed)
        assert found.notes == ("--kind wind has no effect: the column is not in x or y.",)
    # A pattern may name more columns than are selected.
    every = read_tables([path], **chosen, kinds="*=category")
    assert every.x.shape == (90, 7) and every.notes == ()
    assert read_tables([path], **chosen, group="site", kinds="site=category").notes == ()


def test_a_column_with_infinite_values_is_left_out_of_a_ranking(text_file):
    rows = "\n".join(f"{row % 7},{row % 5},{'inf' if row == 6 else row}" for row in range(90))
    path = text_file(f"a,y,broken\n{rows}")
    ranked = read_tables([path], y="y", each=True)
    assert list(ranked.parts[0]) == ["a"]
    assert ranked.notes[-1] == "Of these, left out: 'broken' (infinite values)."
    assert "broken" in read_tables([path], x="broken", y="y", each=True).parts[0]  # then an error


def test_an_array_of_objects_is_ignored_unless_it_is_selected(tmp_path, numbers):
    path, rows = tmp_path / "a.npz", len(numbers)
    objects = np.array([{"a": 1}] * rows, dtype=object)
    np.savez(path, emb=numbers[:, :3], labels=np.arange(rows) % 3, objects=objects)
    tables = read_tables([path], x="emb", y="labels", kinds="labels=category")
    assert list(tables.y) == ["labels=0.0", "labels=1.0", "labels=2.0"]
    for asked in ({"x": "emb", "y": "objects"}, {"x": "emb", "kinds": "objects=category"}):
        with pytest.raises(
            ValueError,
            match=r"array 'objects' of .* is damaged or holds Python objects \(Object arr",
        ):
            read_tables([path], **asked)
    assert describe_columns(path)[-1] == {"name": "objects", "kind": "not a table of numbers"}
    np.savez(path, emb=numbers[:, :3], objects=objects)
    assert [one["name"] for one in describe_columns(path)[:3]] == ["emb_0", "emb_1", "emb_2"]


def test_an_archive_with_one_usable_array_says_why_the_other_is_not(tmp_path, numbers):
    for x, why in (
        (
            np.array(["a", None] * 20, dtype=object),
            "array 'x' of .*a.npz is damaged or holds Python objects",
        ),
        (numbers[:, :3] + 1j, "array 'x' of .*a.npz has dtype complex128"),
        (np.ones((40, 2, 2)), r"array 'x' of .*a.npz has dtype float64 and shape \(40, 2, 2\)"),
    ):
        np.savez(tmp_path / "a.npz", x=x, y=numbers[:, 3])
        with pytest.raises(ValueError, match=why):
            read_tables([tmp_path / "a.npz"])
        equal(read_tables([tmp_path / "a.npz"], x="y", alone=True).x, numbers[:, 3:])


def test_encode_takes_one_column_or_an_array():
    assert list(encode(pd.Series(["u", "v"], name="w"))) == ["w=u", "w=v"]
    equal(encode(np.eye(3)), np.eye(3))


def test_a_zip_file_of_text_is_not_an_archive_of_arrays(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.csv", "a,b\n1,2\n")
    assert "array 'a.csv' of" in refusal(tmp_path / "a.npz")


def test_a_link_to_no_file_is_not_suggested_for_itself(tmp_path):
    (tmp_path / "a.csv").symlink_to(tmp_path / "gone.csv")
    with pytest.raises(FileNotFoundError, match=r"a\.csv does not exist; name a file"):
        read_tables([tmp_path / "a.csv"])


def test_the_arrays_of_an_archive_that_cannot_be_used_are_named_in_the_list(tmp_path, numbers):
    *usable, files, classes = describe_columns(embeddings(tmp_path / "a.npz", numbers))
    assert {one["kind"] for one in usable} == {"number"}
    assert [one["name"] for one in usable][2:4] == ["embeddings_2", "labels"]
    assert files == {"name": "files", "kind": "not a table of numbers"}
    assert classes == {**files, "name": "classes"}


# Large files.

ROWS = 5_000


@pytest.fixture(scope="module")
def frame():
    values = np.random.default_rng(1).normal(size=(ROWS, 6)).round(6)
    return pd.DataFrame(values, columns=list("abcdef"))


@pytest.fixture(scope="module", params=["csv", "csv.gz", "parquet", "npy", "npz"])
def large_file(request, frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / f"a.{request.param}"
    if request.param.startswith("csv"):
        frame.to_csv(path, index=False)
    elif request.param == "parquet":
        frame.to_parquet(path, row_group_size=700)
    else:
        (np.save if request.param == "npy" else np.savez)(path, frame.to_numpy())
    return path


def test_a_file_that_does_not_fit_is_refused_before_it_is_read(large_file, monkeypatch):
    monkeypatch.setattr(module._File, "read", lambda *_: pytest.fail("read"))
    monkeypatch.setattr(module, "available_memory", lambda: 2**19)
    message = refusal(large_file, "0:3", "3:6")
    assert "0.5 MiB are free" in message and "--rows" in message


def test_an_archive_that_unpacks_to_more_than_the_memory_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros((200_000, 2)), y=np.zeros(200_000))
    monkeypatch.setattr(module, "available_memory", lambda: 2**20)
    message = refusal(tmp_path / "zeros.npz", "x", "y")
    assert "zeros.npz would take about 4.6 MiB of memory and 1.0 MiB are free" in message


@pytest.mark.parametrize("cells", [600, module.CHUNK_CELLS])
def test_a_sample_is_the_same_rows_of_every_format_and_reported(
    large_file, frame, cells, monkeypatch
):
    monkeypatch.setattr(module, "CHUNK_CELLS", cells)  # pieces of 1,000 rows
    tables = read_tables([large_file], x="4,0", y="1:3", rows=200, seed=7)
    sampled = np.sort(np.argsort(np.random.default_rng(7).random(ROWS))[:200])
    equal(tables.x, frame[["e", "a"]].to_numpy()[sampled])
    assert "200 of 5,000 rows were taken at random (seed 7)." in tables.notes
    equal(read_tables([large_file], x="0", y="1").y, frame[["b"]].to_numpy())


# Refusals.


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "\n\n", "is empty"),
        ("a.csv", '# note\n""\n" "\n', "is empty"),
        ("a.csv", '""\t\n', "no rows"),
        ("a.csv", "a,b\n", "names and no rows"),
        ("a.csv", "1.5,2.5\n3.5,4.5\n", "--no-header"),
        ("a.csv", "a,b\n1,2\n3,4,5,6\n", "line 3 has 4 cells instead of 2; correct it"),
        ("a.csv", "a,b,c\n1,2,3\n\n4,5\n6,7,8\n", "line 4 has 2 cells instead of 3; correct it"),
        ("a.csv", 'a,b,c\n1,"2\n,",3\n4\n6,7,8\n', "line 4 has 1 cell instead of 3; correct it"),
        ("a.csv", "# made\na;b;c\n1;2;\n4;5\n6;7;8\n", "line 4 has 2 cells instead of 3"),
        (
            "a.txt",
            "a b c" + "\n1 2  3" * 60 + "\n4 5\n6 7 8\n",
            "line 62 has 2 cells instead of 3",
        ),
        ("a.csv", 'a,b\n1,2\n3,"4\n5,6\n', "a quotation mark in line 3 is never closed"),
        ("a.csv", "a,b\n1,2,3\n4,5,6\n", "2 names in its first line and 3 cells"),
        ("a.csv", "Report of 2024\n\na,b\n1,2\n3,4\n", "above the names"),
        ("a.csv", "PK\x03\x04 and so on", "not text"),
        ("a.csv", "a\0,b\n", "not text"),
        ("a.xlsx", "a,b\n1,2\n", ".xlsx cannot"),
        ("a", "a,b\n1,2\n", "without suffix"),
    ],
)
def test_what_is_not_a_table_of_text_is_refused(text_file, name, text, words):
    assert words in refusal(text_file(text, name))


@pytest.mark.parametrize(
    "encoding, name", [("utf-16", "a.csv"), ("cp1252", "a.csv"), ("", "a.csv.gz")]
)
def test_a_short_line_is_found_in_any_text_file(text_file, encoding, name):
    rows = "".join(f"{row},{row % 7},é,\n" for row in range(3_000))
    text = f"a,b,c,d\n{rows}1,2\n{rows}"
    path = text_file(text, name, encoding or "utf-8")
    if name.endswith("gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert "line 3002 has 2 cells instead of 4; correct it" in refusal(path)


def test_text_is_scanned_for_short_lines_only_if_the_last_column_has_missing_cells(
    text_file, monkeypatch
):
    scan = Mock(wraps=module.count)  # of lines
    monkeypatch.setattr(module, "count", scan)
    read_tables([text_file("a,b,c\n1,,3\n4,5,6\n")], x="a", y="b")
    describe_columns(text_file("a,b,c\n1,2,\n4,5,6\n"))
    assert scan.call_count == 0
    read_tables([text_file("a,b,c\n1,2,\n4,5,6\n")], x="a", y="b")
    assert scan.call_count == 1


DAYS = "day,height (cm),mass\n2024-01-01,1,2\n2024-01-02,3,4\n"
LETTERS = "a,b,c\n1,2,u\n4,5,\n"


@pytest.mark.parametrize(
    "text, options, words",
    [
        (DAYS, {"x": None, "y": None}, "--x 'height (cm)' --y mass, or name a second file"),
        ("a\n1\n2\n", {"x": None, "y": None}, "has one column, 'a'; add a second one, or name"),
        ("a\n1\n2\n", {"y": None}, "has one column, 'a'; add a second one, or name"),
        ("emb_0,emb_1,b\n1,2,3\n4,5,6\n", {"x": "emb_*", "y": "emb_1:b"}, "'emb_1'"),
        ("a,b,a\n1,2,3\n4,5,6\n", {}, "columns 0 and 2"),
        (LETTERS, {"rows": 0}, "rows=0"),
        (LETTERS, {"group": "*"}, "names 3 columns"),
        (LETTERS, {"group": "c"}, "no value in row 2"),
        (LETTERS, {"group": "d"}, "no such column"),
        (LETTERS, {"header": False, "x": "a"}, "leave out --no-header"),
    ],
)
def test_choices_that_make_no_sense_are_refused(text_file, text, options, words):
    assert words in refusal(text_file(text), **{"x": "a", "y": "b", **options})


@pytest.mark.parametrize(
    "cells, words",
    [
        (["1", "2", "broken", "4"], "row 3 of the data holds 'broken'"),
        (["cm", "2", "3", "4"], "row 1 of the data holds 'cm'"),
        (["180 cm", "170 cm", "165 cm", ""], "units into the column's name"),
        (["1,234.5", "2,345.6", "7", "8"], "without separators between thousands"),
    ],
)
def test_cells_that_are_not_numbers_are_shown(text_file, cells, words):
    rows = "".join(f'"{cell}",{number}\n' for number, cell in enumerate(cells))
    message = refusal(text_file(f"height,b\n{rows}"), "height", "b")
    assert "'height'" in message and words in message


def test_two_files_of_different_lengths_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((5, 2)))
    np.save(tmp_path / "y.npy", np.ones((6, 2)))
    message = refusal([tmp_path / "x.npy", tmp_path / "y.npy"], None, None)
    assert "has 5 rows" in message and "has 6 rows" in message and "position" in message


@pytest.mark.parametrize(
    "array, words",
    [
        (np.array([[1, "a"], [2, "b"]], dtype=object), "object"),
        (np.ones((4, 2), dtype=complex), "dtype complex"),
        (np.array([["a", "b"]]), "dtype <U1"),
        (np.ones((4, 2, 3)), "shape (4, 2, 3)"),
        (np.empty((0, 3)), "shape (0, 3)"),
    ],
)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_arrays_that_are_not_tables_are_refused(tmp_path, array, words, suffix):
    path = tmp_path / f"a.{suffix}"
    (np.save if suffix == "npy" else np.savez)(path, array)
    assert words in refusal(path)


class Explosive:
    def __reduce__(self):
        return pytest.fail, ("a pickle was opened",)


@pytest.mark.parametrize("name", ["a.pkl", "a.npy", "a.npz", "a.csv", "a.pt", "a.parquet"])
def test_pickles_are_never_opened(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Explosive(), protocol=0 if name == "a.csv" else 4))
    refusal(path)


def test_arrays_of_an_archive_must_have_the_same_number_of_rows(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones((5, 2)), b=np.ones(4))
    assert "'a' 5, 'b' 4" in refusal(tmp_path / "a.npz", "a", "b")


@pytest.mark.parametrize("kept", [30, 2_000])
def test_a_truncated_gzip_file_is_refused(tmp_path, kept):
    rows = np.random.default_rng(0).normal(size=(5_000, 2))
    whole = gzip.compress(("a,b\n" + "\n".join(f"{a},{b}" for a, b in rows)).encode())
    (tmp_path / "a.csv.gz").write_bytes(whole[:kept])
    with pytest.raises(OSError, match=r"a\.csv\.gz"):
        read_tables([tmp_path / "a.csv.gz"], x="a", y="b")


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_truncated_array_is_refused(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    (np.save if suffix == "npy" else np.savez)(path, np.ones((100, 2)))
    path.write_bytes(path.read_bytes()[:-200])
    assert "cut short" in refusal(path) or suffix == "npz"


def test_a_column_of_words_on_both_sides_is_named_as_in_the_file(tmp_path):
    from flatnce.mi.cleaning import clean

    random = np.random.default_rng(0)
    city = random.choice(["Paris", "Rome", "Oslo"], 100)
    table = pd.DataFrame({"T=1": random.normal(size=100), "city": city, "town": city})
    table.to_csv(tmp_path / "t.csv", index=False)
    tables = read_tables([tmp_path / "t.csv"], x="city", y="town,T=1")
    assert clean(tables.x, tables.y).shared == ("town",)
    both = read_tables([tmp_path / "t.csv"] * 2, x="T=1", y="T=1")
    assert clean(both.x, both.y).shared == ("T=1",)
    words = random.choice(["cat", "dog", "cow"], (2, 100))
    words = np.where(np.arange(100) == 7, "odd", words)  # the only row of that word, on both sides
    pd.DataFrame(words.T, columns=["a", "b"]).to_csv(tmp_path / "w.csv", index=False)
    tables = read_tables([tmp_path / "w.csv"], x="a", y="b")
    assert clean(tables.x, tables.y).shared == ()
    encoded = encode(pd.DataFrame(words.T, columns=["a", "b"]))
    sides = [encoded[[name for name in encoded if name[0] == side]] for side in "ab"]
    assert clean(*sides).shared == ()
    assert clean(sides[0], sides[0].rename(columns=str.upper)).shared != ()


@pytest.mark.parametrize("start", ["?,red", "1.5,red", "-,red", "2024-01-05,red", '"1,5",red'])
def test_a_first_line_of_values_is_not_called_a_header(text_file, start):
    assert describe_columns(text_file("red,small\nblue,3\n" * 9), header=False)
    assert describe_columns(text_file(start + "\n" + "2.5,blue\n" * 20), header=False)
    with pytest.raises(ValueError, match=r"holds names \('size', 'sky'\).*leave out --no-header"):
        describe_columns(text_file("size,sky\n" + "2.5,blue\n" * 20), header=False)
