"""Damaged files: whatever is in them, the only outcome besides success is one of our own errors."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.cohorts import audit, read_cohort, read_splits
from marble.errors import MarbleError, TableError

TABLES = [
    b"case_id,slide_id,label\np,s,a\nq,t,b\nr,u,a\n",
    b"case_id;slide_id;time;event\np;s;1;1\nq;t;2.5;0\n",
    b",case_id,slide_id,survival_months,censorship\n0,TCGA-AA-0001,TCGA-AA-0001-01Z.svs,1,1\n1,q,t,3,0\n",
    b"image_id,data_provider,isup_grade\na,radboud,0\nb,karolinska,5\n",
]
SPLITS = [
    (".csv", b",train,val,test\n0,a,b,c\n1,d,,\n"),
    (".csv", b",train,val,test\na,True,False,False\nb,False,True,False\n"),
    (".csv", b"slide_id,split\na,train\nb,val\nc,test\n"),
    (".json", b'{"splits": [{"train_patients": ["a"], "test_patients": ["b"]}]}'),
    (".json", b'{"format": "marble-split-1", "train": ["a"], "val": [], "test": [], "scheme": "x", "repeat": 0}'),
]
PIECES = st.one_of(
    st.binary(max_size=6),
    st.sampled_from(
        [b",", b";", b"\t", b'"', b"\n", b"\r", b"\0", b"\xff", b"NaN", b"-1", b"1e5", b"\xef\xbb\xbf", b"=", b"{"]
    ),
)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with one to three places cut out, overwritten or filled with junk."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        data = data[:start] + draw(PIECES) + data[start + draw(st.integers(0, 8)) :]
    return data


@pytest.mark.parametrize("table", TABLES)
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_tables(tmp_path_factory: pytest.TempPathFactory, table: bytes, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.csv"
    path.write_bytes(data.draw(damaged(table)))
    fault: TableError | None = None
    try:
        cohort = read_cohort(path)
    except TableError as error:
        fault = error
    if fault is None:
        assert all(case.case_id == case.case_id.strip() != "" for case in cohort.cases)
        assert cohort.summary()
    else:
        assert str(path) in str(fault)
        assert fault.hint


@pytest.mark.parametrize(("suffix", "text"), SPLITS)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_splits(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, text: bytes, data: st.DataObject
) -> None:
    path: Path = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    path.write_bytes(data.draw(damaged(text)))
    with contextlib.suppress(MarbleError):
        assert audit(path).lines()
    with contextlib.suppress(MarbleError):
        for split in read_splits(path):
            assert split.fingerprint()
