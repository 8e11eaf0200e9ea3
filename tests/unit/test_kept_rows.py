"""Row groups that a consumer keeps for its next poll do not change the rows."""

import pytest
from examples import examples
from faulty_files import FaultyFiles
from hypothesis import given
from hypothesis import strategies as st
from unit.test_fetch_rows import OTHER, make_body, make_plan

from lakemq.engine.client.fetch.arrow import fetch_arrow
from lakemq.engine.client.fetch.rows import RowGroupCache
from lakemq.engine.namespace.data_file import new_data_file

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@examples(30)
@given(
    st.lists(st.tuples(st.integers(0, 2_900), st.integers(1, 900)), min_size=1, max_size=6),
    st.sampled_from([0, 20_000, 1 << 30]),
)
def test_cache_does_not_change_the_rows_of_a_fetch(
    tmp_path_factory: pytest.TempPathFactory, polls: list[tuple[int, int]], most_bytes: int
) -> None:
    files, footer = _write_data_file(str(tmp_path_factory.mktemp("kept")))
    cache = RowGroupCache(most_bytes)
    for first, count in polls:
        ranges = [(OTHER, first, min(count, 3_000 - first))]
        with_kept = fetch_arrow(files, make_plan(ranges, [], footer), cache)
        assert with_kept.equals(fetch_arrow(files, make_plan(ranges, [], footer)))


def _write_data_file(folder: str) -> tuple[FaultyFiles, int]:
    """Write a data file of 3,000 rows in several row groups, and return it with the hash of its footer."""
    files = FaultyFiles(folder)
    with new_data_file(files, OTHER) as writer:
        for first in range(0, 3_000, 700):
            writer.write(make_body(first, min(700, 3_000 - first)))
    return files, writer.written(files).footer_hash
