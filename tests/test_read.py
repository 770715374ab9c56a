"""Ways in: what stands in a file is what stands in the crowd."""

import json
import os
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from pyrocrowd import Crowd, PyrocrowdError, PyrocrowdWarning
from pyrocrowd.data import sets
from pyrocrowd.data.naming import KNOWN_COLUMNS

TABLE = pd.DataFrame(
    {"item": ["p", "p", "q", "q", "r"], "annotator": ["ann", "bob", "ann", "bob", "ann"], "label": list("xyxxy")}
)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def assert_same(left: Crowd, right: Crowd):
    pd.testing.assert_frame_equal(left.to_frame(), right.to_frame(), check_dtype=False)
    for names in ("item_names", "annotator_names", "class_names"):
        assert getattr(left, names).tolist() == getattr(right, names).tolist()


# -------------------------------------------------------------------- columns


@pytest.mark.parametrize("part, name", [(part, name) for part in KNOWN_COLUMNS for name in KNOWN_COLUMNS[part]])
@pytest.mark.parametrize("spelling", [str.lower, str.upper, str.title, lambda name: f" {name.replace('_', ' ')} "])
def test_every_known_column_name_is_recognised_in_any_case_and_with_spaces(part, name, spelling):
    renamed = TABLE.rename(columns={part: spelling(name)})
    assert_same(Crowd.from_frame(renamed[renamed.columns[::-1]]), Crowd.from_frame(TABLE))


def test_the_columns_argument_names_columns_that_have_other_names():
    renamed = TABLE.set_axis(["the photo", "who", "what"], axis="columns")
    columns = {"item": "the photo", "annotator": "who", "label": "what"}
    assert_same(Crowd.from_frame(renamed, columns=columns), Crowd.from_frame(TABLE))


def test_the_columns_argument_wins_over_a_column_with_a_known_name():
    both = TABLE.assign(corrected=list("yyyxx"))
    crowd = Crowd.from_frame(both, columns={"label": "corrected"})
    assert crowd.to_frame()["label"].tolist() == list("yyyxx")


def test_a_column_name_in_the_wrong_case_is_suggested():
    with pytest.raises(PyrocrowdError, match="no column 'LABEL' for the label. Did you mean 'label'"):
        Crowd.from_frame(TABLE, columns={"label": "LABEL"})


def test_all_missing_columns_are_reported_at_once():
    with pytest.raises(PyrocrowdError) as caught:
        Crowd.from_frame(TABLE.set_axis(["a", "b", "c"], axis="columns"))
    assert [f"column for the {part} among a, b, c" in line for part, line in zip(
        ("item", "annotator", "label"), caught.value.problems, strict=True
    )] == [True] * 3  # fmt: skip


def test_two_columns_of_the_same_name_are_refused():
    with pytest.raises(PyrocrowdError, match="two columns are called 'label'"):
        Crowd.from_frame(pd.concat([TABLE, TABLE[["label"]]], axis=1))


# -------------------------------------------------------------------- kinds of files


@pytest.mark.parametrize(
    "table",
    [
        TABLE,
        TABLE.assign(item=[1, 1, 10, 10, 2], label=[0, 1, 0, 0, 1]),
        TABLE.assign(item=["01", "01", "1", "1", "2"], annotator=["NA", "None", "NA", "None", "null"]),
        TABLE.assign(label=[True, False, True, True, False]),
        TABLE.assign(label=[1.0, 2.0, 1.0, 1.0, 2.0]),
        TABLE.assign(label=["a,b", 'say "c"', "a,b", "a,b", "é漢字"]),
    ],
    ids=["text", "numbers", "odd_names", "booleans", "whole_floats", "quotes"],
)
def test_every_kind_of_file_gives_the_same_crowd(tmp_path, table):
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    table.to_parquet(tmp_path / "t.parquet")
    table.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    for kind in ("csv", "tsv", "parquet", "jsonl"):
        assert_same(Crowd.read(tmp_path / f"t.{kind}"), Crowd.from_frame(table))


def test_the_kind_of_a_file_may_be_in_capitals(tmp_path):
    TABLE.to_csv(tmp_path / "T.CSV", index=False)
    assert_same(Crowd.read(tmp_path / "T.CSV"), Crowd.from_frame(TABLE))


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbfitem,worker,label\r\n1,a,x\r\n1,b,y\r\n")
    lines = [{"item": 1, "worker": "a", "label": "x"}, {"item": 1, "worker": "b", "label": "y"}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8-sig")
    for kind in ("csv", "jsonl"):
        assert Crowd.read(tmp_path / f"t.{kind}").class_names.tolist() == ["x", "y"]


def test_spaces_after_commas_are_not_part_of_the_names(tmp_path):
    path = write(tmp_path / "t.csv", 'item, worker, label\n1, ann, cat\n1, bob, "a, b"\n')
    crowd = Crowd.read(path)
    assert crowd.annotator_names.tolist() == ["ann", "bob"]
    assert crowd.class_names.tolist() == ["a, b", "cat"]


# -------------------------------------------------------------------- names


def test_names_with_leading_zeros_stay_text(tmp_path):
    crowd = Crowd.read(write(tmp_path / "t.csv", "item,worker,label\n007,0,x\n7,1,y\n"))
    assert crowd.item_names.tolist() == ["007", "7"]


@pytest.mark.parametrize("word", ["NA", "None", "null", "True", "N/A", "-", "inf", "1e3"])
def test_words_that_look_like_something_else_survive_as_labels(tmp_path, word):
    crowd = Crowd.read(write(tmp_path / "t.csv", f"item,worker,label\n1,a,{word}\n1,b,zebra\n"))
    assert word in crowd.class_names.tolist() and crowd.n_annotations == 2


def test_integer_names_sort_as_numbers_and_text_as_text(tmp_path):
    crowd = Crowd.read(write(tmp_path / "t.csv", "item,worker,label\n10,w10,-1\n9,w9,10\n2,w9,9\n"))
    assert crowd.item_names.tolist() == [2, 9, 10]
    assert crowd.annotator_names.tolist() == ["w10", "w9"]
    assert crowd.class_names.tolist() == [-1, 9, 10]


def test_whole_numbers_written_as_floats_are_whole_numbers_and_others_stay_text(tmp_path):
    crowd = Crowd.read(write(tmp_path / "t.csv", "item,worker,label\n1.0,1.0,1.0\n2.0,1.5,1\n"))
    assert crowd.item_names.tolist() == [1, 2]
    assert crowd.annotator_names.tolist() == ["1.0", "1.5"]
    assert crowd.class_names.tolist() == ["1", "1.0"]


def test_categorical_and_nullable_columns_are_read_by_their_values():
    table = TABLE.assign(label=TABLE["label"].astype("category"), item=pd.array([3, 3, 1, 1, 2], "Int64"))
    crowd = Crowd.from_frame(table)
    assert crowd.item_names.tolist() == [1, 2, 3] and crowd.class_names.tolist() == ["x", "y"]


def test_repeated_pairs_are_kept_and_counted_in_a_warning():
    with pytest.warns(PyrocrowdWarning, match="^2 rows repeat"):
        crowd = Crowd.from_frame(pd.concat([TABLE, TABLE[:2]]))
    assert crowd.n_annotations == 7


# -------------------------------------------------------------------- folders, features and truth


def folder(tmp_path, rows="b,ann,0\na,bob,1\n", **files):
    write(tmp_path / "annotations.csv", "task,worker,label\n" + rows)
    for name, content in files.items():
        if isinstance(content, str):
            write(tmp_path / name.replace("_txt", ".txt").replace("_csv", ".csv"), content)
        else:
            np.save(tmp_path / f"{name}.npy", np.asarray(content))
    return tmp_path


def test_the_order_of_tasks_txt_lines_the_features_up(tmp_path):
    crowd = Crowd.read(
        folder(tmp_path, tasks_txt="b\nc\na\n", features=[[1.0], [2.0], [3.0]], truth_csv="task,label\na,1\n")
    )
    assert crowd.item_names.tolist() == ["b", "c", "a"]
    assert crowd.item.tolist() == [0, 2] and crowd.truth.tolist() == [-1, -1, 1]
    assert crowd.features[crowd.item].tolist() == [[1.0], [3.0]]
    assert crowd.labels_per_item.tolist() == [1, 0, 1]


def test_tasks_txt_may_name_the_row_numbers_that_stand_in_the_table(tmp_path):
    crowd = Crowd.read(
        folder(tmp_path, "0,ann,0\n2,bob,1\n", tasks_txt="115\n116\n117\n", features=[[1.0], [2.0], [3.0]])
    )
    assert crowd.item_names.tolist() == [0, 1, 2] and crowd.item.tolist() == [0, 2]


def test_classes_txt_declares_classes_that_nobody_gave(tmp_path):
    named = Crowd.read(folder(tmp_path, "0,ann,cat\n0,bob,dog\n", classes_txt="dog\nowl\ncat\n"))
    assert named.class_names.tolist() == ["dog", "owl", "cat"] and named.label.tolist() == [2, 0]
    coded = Crowd.read(folder(tmp_path, "0,ann,2\n0,bob,0\n"))
    assert coded.class_names.tolist() == [0, 1, 2] and coded.label.tolist() == [2, 0]


def test_a_name_that_tasks_txt_repeats_is_refused(tmp_path):
    with pytest.raises(PyrocrowdError, match="holds a more than once"):
        Crowd.read(folder(tmp_path, tasks_txt="a\nb\na\n", features=[[1.0], [2.0], [3.0]]))


def test_integer_items_are_rows_of_the_features_and_need_no_label():
    table = TABLE.assign(item=[0, 0, 2, 2, 3])
    crowd = Crowd.from_frame(table, features=np.arange(10.0).reshape(5, 2))
    assert crowd.n_items == 5 and crowd.labels_per_item.tolist() == [2, 0, 2, 1, 0]
    assert crowd.features[crowd.item][:, 0].tolist() == [0, 0, 4, 4, 6]


@pytest.mark.parametrize("header", ["item,one,two", "photo,one,two"])
def test_a_features_table_is_lined_up_by_its_item_column(tmp_path, header):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    features = write(tmp_path / "f.csv", f"{header}\nr,5,6\np,1,2\nz,7,8\nq,3,4\n")
    crowd = Crowd.read(tmp_path / "t.csv", features=features)
    assert crowd.item_names.tolist() == ["r", "p", "z", "q"]
    assert crowd.features[crowd.item].tolist() == [[1, 2], [1, 2], [3, 4], [3, 4], [5, 6]]


def test_the_item_column_of_a_features_table_may_stand_anywhere(tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    features = write(tmp_path / "f.csv", "one,Task ID\n5,r\n1,p\n3,q\n")
    assert Crowd.read(tmp_path / "t.csv", features=features).features.tolist() == [[5], [1], [3]]


def test_a_features_table_follows_the_order_of_tasks_txt(tmp_path):
    folder(tmp_path, "10,ann,0\n9,bob,1\n", tasks_txt="10\n9\n")
    features = write(tmp_path / "f.csv", "item,one\n9,0.9\n10,0.1\n")
    crowd = Crowd.read(tmp_path, features=features)
    assert crowd.item_names.tolist() == [10, 9] and crowd.features.tolist() == [[0.1], [0.9]]


def test_features_stay_on_disk_until_they_are_asked_for(tmp_path):
    crowd = Crowd.read(folder(tmp_path, "0,ann,0\n1,bob,1\n", features=np.eye(2)))
    assert isinstance(crowd.features, np.memmap)


@pytest.mark.parametrize("kind", [">f8", "<f4", "float16", "int32", "bool"])
def test_features_of_any_number_type_reach_the_model_with_their_values(kind):
    crowd = Crowd.from_frame(
        TABLE.assign(item=[0, 0, 1, 1, 2]), features=np.array([[0, 1], [1, 0], [1, 1]]).astype(kind)
    )
    assert crowd.batch().features.tolist() == [[0, 1], [1, 0], [1, 1]]


def test_a_sparse_matrix_of_features_becomes_an_array():
    crowd = Crowd.from_frame(TABLE.assign(item=[0, 0, 1, 1, 2]), features=sparse.csr_matrix(np.eye(3)))
    assert crowd.features.tolist() == np.eye(3).tolist()


def test_features_and_truth_of_a_folder_can_be_left_out(tmp_path):
    folder(tmp_path, "0,ann,0\n1,bob,1\n", features=np.eye(2), truth_csv="task,label\n0,1\n")
    crowd = Crowd.read(tmp_path, features=False, truth=False)
    assert crowd.features is None and crowd.truth is None


@pytest.mark.parametrize(
    "truth",
    [
        {"q": "x", "r": "y", "elsewhere": "x"},
        pd.Series({"q": "x", "r": "y"}),
        pd.DataFrame({"Task": ["r", "q", "p"], "Label": ["y", "x", None]}),
        np.array([None, "x", "y"], object),
    ],
    ids=["dict", "series", "frame", "array"],
)
def test_truth_may_be_partial_in_every_form(truth):
    assert Crowd.from_frame(TABLE, truth=truth).truth.tolist() == [-1, 0, 1]


def test_two_different_truths_of_one_item_are_refused():
    truth = pd.DataFrame({"item": ["p", "p", "q", "q"], "label": ["x", "y", "x", "x"]})
    with pytest.raises(PyrocrowdError, match=r"1 item has two different true labels \(p\)"):
        Crowd.from_frame(TABLE, truth=truth)


# -------------------------------------------------------------------- matrices


@pytest.mark.parametrize(
    "matrix, missing",
    [
        (np.array([[0, -1], [2, 0]]), -1),
        (np.array([[0, np.nan], [2, 0]]), -1),
        (np.array([[0, None], [2, 0]], object), -1),
        (np.array([[0, 9], [2, 0]]), 9),
        (sparse.coo_matrix(([0, 2, 0], ([0, 1, 1], [0, 0, 1])), (2, 2)), -1),
        (sparse.coo_matrix(([0, -1, 2, 0], ([0, 0, 1, 1], [0, 1, 0, 1])), (2, 2)), -1),
        (sparse.coo_matrix(([0, np.nan, 2, 0], ([0, 0, 1, 1], [0, 1, 0, 1])), (2, 2)).tocsr(), -1),
    ],
    ids=["minus_one", "nan", "none", "other_code", "sparse", "sparse_minus_one", "sparse_nan"],
)
def test_a_matrix_gives_its_labels_and_nothing_where_one_is_missing(matrix, missing):
    crowd = Crowd.from_matrix(matrix, missing)
    rows = sorted(
        zip(crowd.item.tolist(), crowd.annotator.tolist(), crowd.class_names[crowd.label].tolist(), strict=True)
    )
    assert rows == [(0, 0, 0), (1, 0, 2), (1, 1, 0)]


def test_a_matrix_of_words_keeps_rows_and_columns_without_labels():
    crowd = Crowd.from_matrix(np.array([["cat", ""], ["", ""], ["dog", ""]]), missing="", truth=["cat", "dog", "dog"])
    assert (crowd.n_items, crowd.n_annotators) == (3, 2)
    assert crowd.class_names.tolist() == ["cat", "dog"] and crowd.truth.tolist() == [0, 1, 1]


# -------------------------------------------------------------------- the real data

# name: items, with truth, annotators, classes, annotations, repeated rows (the table of shared/data/INDEX.md)
REAL = {
    "labelme": (1000, 1000, 59, 8, 2547, 0),
    "music_genre": (700, 700, 44, 10, 2945, 0),
    "bluebirds": (108, 108, 39, 2, 4212, 0),
    "wordsim": (30, 30, 10, 2, 300, 0),
    "rte": (800, 800, 164, 2, 8000, 0),
    "medical_causes": (3231, 975, 468, 2, 50226, 0),
    "medical_treats": (3231, 621, 468, 2, 50226, 0),
    "cifar10n": (50000, 50000, 747, 10, 150000, 0),
    "product": (8315, 8315, 176, 2, 24945, 0),
    "dog": (807, 807, 109, 4, 8070, 0),
    "web": (2665, 2653, 177, 5, 15567, 0),
    "adult": (11040, 333, 825, 4, 92721, 2922),
    "d_sentiment": (1000, 1000, 85, 2, 20000, 0),
    "weather_sentiment_amt": (300, 300, 110, 5, 6000, 5),
    "weather_sentiment_crowdflower": (300, 300, 461, 5, 1720, 0),
}
FEATURES = {"labelme": 512, "music_genre": 124, "bluebirds": 4096, "wordsim": 200, "rte": 1536, "medical_causes": 1152}


def place_of(name):
    try:
        return sets.folder_of(name)
    except FileNotFoundError:
        pytest.skip(f"the data set {name} is not here: set {sets.VARIABLE} to the folder that holds it")


@pytest.mark.parametrize("name", REAL)
def test_every_real_data_set_reads_with_the_sizes_of_its_index(name):
    place = place_of(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if name == "wordsim":  # its raw truth is a number on another scale: the binary files go together
            table, truth = place / "annotations_binary.csv", place / "truth_binary.csv"
            crowd = Crowd.read(table, truth=truth, features=place / "features.npy")
        else:
            crowd = Crowd.read(place)
    known = int((crowd.truth >= 0).sum())
    sizes = crowd.n_items, known, crowd.n_annotators, crowd.n_classes, crowd.n_annotations, crowd.n_repeated
    assert sizes == REAL[name]
    repeated = [str(one.message).split()[0] for one in caught if issubclass(one.category, PyrocrowdWarning)]
    assert repeated == ([str(REAL[name][-1])] if REAL[name][-1] else [])
    assert crowd.feature_shape == ((FEATURES[name],) if name in FEATURES else (256,) if name == "cifar10n" else None)


def test_raw_word_similarity_reads_when_its_truth_is_left_out():
    crowd = Crowd.read(place_of("wordsim"), truth=False)
    assert crowd.class_names.tolist() == list(range(11)) and crowd.truth is None


def test_the_features_of_rte_are_lined_up_by_its_original_ids():
    place = place_of("rte")
    crowd = Crowd.read(place)
    first = int(os.linesep.join((place / "tasks.txt").read_text().splitlines()[:1]))
    labels = pd.read_csv(place / "annotations.csv").query("task == @first")["label"]
    assert crowd.item_names[0] == first
    assert sorted(crowd.class_names[crowd.label[crowd.item == 0]]) == sorted(labels)


@pytest.mark.parametrize("split, items, first", [("valid", 500, 6), ("test", 1188, 2)])
def test_the_other_splits_of_labelme_have_truth_and_no_labels(split, items, first):
    place = place_of("labelme")
    part = Crowd.read(place, split=split)
    truth = pd.read_csv(place / f"truth_{split}.csv").sort_values("task")["label"]
    assert part.n_items == items == len(truth) and part.n_annotations == 0 and part.n_classes == 8
    assert part.class_names[part.truth].tolist() == truth.tolist() and part.truth[0] == first
    assert np.array_equal(part.features, np.load(place / f"features_{split}.npy"))


def test_a_split_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PyrocrowdError, match="no split 'valid': there is no features_valid.npy"):
        Crowd.read(folder(tmp_path, "0,ann,0\n1,bob,1\n"), split="valid")
