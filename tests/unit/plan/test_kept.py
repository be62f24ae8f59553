from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atoll.model.volume import KeptUntil, Volume, VolumeFormat, VolumeType
from atoll.plan.kept import in_words, kept_of, lost_at_stop

ROOTS = st.sampled_from([Volume(VolumeFormat.MEMORY, 0), Volume(VolumeFormat.RAW, 64)])
OTHERS = st.lists(
    st.builds(
        Volume,
        st.sampled_from([VolumeFormat.RAW, VolumeFormat.QCOW2]),
        st.integers(1, 64),
        st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(lambda name: name != "root"),
        type=st.sampled_from(VolumeType),
        attached=st.booleans(),
    ),
    max_size=5,
    unique_by=lambda volume: volume.name,
)


@given(ROOTS, OTHERS)
def test_every_volume_is_in_it_once_and_is_lost_only_where_it_is_in_memory(
    root: Volume, others: list[Volume]
):
    volumes = [root, *others]
    kept = kept_of(volumes)
    assert [one.name for one in kept] == [volume.name for volume in volumes]
    in_memory = [volume.name for volume in volumes if volume.in_memory]
    assert list(lost_at_stop(kept)) == in_memory
    assert [one.name for one in kept if one.until is KeptUntil.DESTROY] == [
        volume.name for volume in volumes if volume.name not in in_memory
    ]


@given(ROOTS, OTHERS)
def test_the_words_name_each_volume_once_with_the_root_by_itself(root: Volume, others: list[Volume]):
    lines = in_words(kept_of([root, *others]))
    assert lines[0] in ("root: memory, lost at stop", "root: kept until destroy")
    named = [name for line in lines for name in line.partition(":")[0].split(", ")]
    assert sorted(named) == sorted(["root", *(volume.name for volume in others)])
    assert len(lines) <= 3
