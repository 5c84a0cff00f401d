"""Searches against plain loops; near-duplicates; the map; two models."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cbml.bayes import MatchProbability
from cbml.errors import BadData
from cbml.gallery import Gallery, Query, SearchOptions, build, list_images, thumbnails
from cbml.gallery import gallery as search
from cbml.gallery.layout import _descend, _gradient, _joint, layout
from cbml.gallery.scores import compare_search, counterparts, worst_queries
from cbml.gallery.thumbnails import (
    TOLERANCE,
    mark_near_duplicates,
    near_duplicate_groups,
    signature_of,
)
from tests.gallery import small
from tests.oracles import gallery as oracle

OPTIONS: list[dict[str, object]] = [
    {"k": 1},
    {"k": 7},
    {"k": 500},
    {"k": 3, "hide_duplicates": True},
    {"k": 40, "hide_duplicates": True},
    {"k": 4, "label": "class 2"},
    {"k": 4, "label": "class 2", "text": "/1", "hide_duplicates": True},
    {"k": 10, "text": "CLASS 1"},
    {"k": 10, "text": "no such thing"},
    {"k": 5, "label": "no such label"},
]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    """With copies: the same file, another size, another compression, another class."""
    folder = small.images(tmp_path_factory.mktemp("images"))
    shutil.copyfile(folder / "class 2" / "1.png", folder / "class 2" / "same.png")
    shutil.copyfile(folder / "class 2" / "1.png", folder / "class 3" / "stranger.png")
    small.draw(201).resize((120, 90)).save(folder / "class 2" / "large.png")
    small.draw(201).save(folder / "class 2" / "small.jpg", quality=90)
    target = tmp_path_factory.mktemp("galleries") / "crowded"
    small.built(folder, target)
    with Gallery(target) as opened:
        yield opened


def test_the_gallery_of_a_run_is_called_after_it(tmp_path: Path) -> None:
    folder = tmp_path / "my run" / "gallery"
    small.built(small.images(tmp_path / "p"), folder)
    with Gallery(folder) as opened:
        assert opened.name == "gallery"
        (folder.parent / "run.json").write_text("{}")
        assert opened.name == "my run"


@pytest.mark.parametrize("depth", [search.DEPTH, 5])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_answers_are_those_of_plain_loops(
    crowded: Gallery, options: dict[str, object], depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "DEPTH", depth)
    monkeypatch.setattr(search, "MISSED", 1000)
    if depth < 10 and not ({"label", "text"} & set(options)):
        pytest.skip("without a filter nothing is looked for below the depth")
    rows = crowded.store.vectors(crowded.ids).tolist()
    signatures = crowded.state.signatures.tolist()
    names = [image.name for image in crowded.images]
    labels = [image.label for image in crowded.images]
    for place in [0, 11, 12, len(crowded) - 1]:
        query = crowded.image_query(int(crowded.ids[place]))
        answer = crowded.search(query, SearchOptions(**options))  # type: ignore[arg-type]
        asked = (rows[place], signatures[place], place)
        results, missed = oracle.search(rows, names, labels, signatures, asked, options)
        found = [
            (result.rank, crowded.index_of(result.id), result.duplicate)
            for result in answer.results
        ]
        assert [row[1:] for row in found] == [row[1:] for row in results]
        known = depth - 1 if depth < 10 else depth  # the query itself takes a place
        ranks = [rank if rank <= known else None for rank, _, _ in results]
        assert [row[0] for row in found] == ranks
        assert [crowded.index_of(result.id) for result in answer.missed] == missed
        assert answer.searched == len(crowded) - 1


def test_an_upload_finds_itself_and_knows_no_label(crowded: Gallery) -> None:
    path = Path(crowded.images[3].path)
    answers = [crowded.search(crowded.query(source)) for source in (path, path.read_bytes())]
    assert answers[0] == answers[1]
    best = answers[0].results[0]
    assert best.id == crowded.images[3].id
    assert best.duplicate
    assert best.similarity == pytest.approx(1, abs=1e-5)
    assert {result.relevant for result in answers[0].results} == {None}
    assert answers[0].query.id is None
    assert answers[0].missed == ()


def test_labels_decide_what_is_correct(crowded: Gallery) -> None:
    place = next(p for p, image in enumerate(crowded.images) if image.label == "class 2")
    answer = crowded.search(crowded.image_query(int(crowded.ids[place])), SearchOptions(k=500))
    for result in answer.results:
        expected = None if result.label is None else result.label == "class 2"
        assert result.relevant is expected
    assert answer.query.positives == sum(result.relevant is True for result in answer.results)
    first = next(result.rank for result in answer.results if result.relevant)
    assert answer.query.first_hit_rank is not None
    assert first is not None
    assert answer.query.first_hit_rank >= first  # ties count against the query


def test_wishes_are_checked(crowded: Gallery) -> None:
    with pytest.raises(BadData, match="k must be from 1"):
        SearchOptions(k=0)
    with pytest.raises(BadData, match="k must be from 1"):
        SearchOptions(k=501)
    with pytest.raises(BadData, match="min_probability"):
        SearchOptions(min_probability=float("nan"))
    with pytest.raises(BadData, match="no calibration"):
        crowded.search(crowded.image_query(0), SearchOptions(min_probability=0.5))
    with pytest.raises(BadData, match="image 12345: not in this gallery"):
        crowded.image_query(12345)


def test_worst_first(gallery: Gallery) -> None:
    scores = gallery.state.scores
    assert scores is not None
    keys = [
        (scores.average_precisions[place], -scores.first_hits[place], gallery.ids[place])
        for place in worst_queries(gallery)
    ]
    assert keys == sorted(keys)
    assert len(keys) == int((scores.positives > 0).sum())


def test_compression_and_size_are_the_same_look(photographs: list[Image.Image]) -> None:
    for image in photographs:
        versions = [image.resize((image.width // 2, image.height // 2))]
        for quality in (60, 85):
            output = io.BytesIO()
            image.save(output, format="JPEG", quality=quality)
            versions.append(Image.open(output).convert("RGB"))
        for version in versions:
            difference = signature_of(image).astype(int) - signature_of(version)
            assert np.abs(difference).max() <= thumbnails.TOLERANCE


def test_other_images_are_another_look(photographs: list[Image.Image]) -> None:
    signatures = np.array([signature_of(image) for image in photographs])
    assert not mark_near_duplicates(signatures).any()
    assert mark_near_duplicates(np.concatenate([signatures, signatures])).tolist() == [False] * len(
        signatures
    ) + [True] * len(signatures)


@pytest.fixture(scope="module")
def photographs() -> list[Image.Image]:
    data = pytest.importorskip("skimage.data")
    folder = Path(data.__file__).parent
    paths = [folder / name for name in ("chelsea.png", "coffee.png", "rocket.jpg", "camera.png")]
    return [Image.open(path).convert("RGB") for path in paths if path.exists()]


def test_a_chain_of_small_changes_does_not_hide_everything() -> None:
    # Each is like the one before, but only what is like an image that is shown is a repetition.
    signatures = np.array(
        [[10 * step] * thumbnails.SIGNATURE_SIZE for step in range(10)], dtype=np.uint8
    )
    assert mark_near_duplicates(signatures).tolist() == [False, True] * 5


def test_the_map_descends_the_cost_of_tsne() -> None:
    chance = np.random.default_rng(0)
    vectors = chance.standard_normal((9, 5)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    joint, places = _joint(vectors), chance.standard_normal((9, 2)).astype(np.float32)
    assert joint.sum() == pytest.approx(1, abs=1e-5)
    buffers = np.empty_like(joint), np.empty_like(joint)
    gradient = _gradient(joint, places, 1.0, *buffers)
    exact = places.astype(np.float64)
    for point, axis in np.ndindex(9, 2):
        step = np.zeros((9, 2))
        step[point, axis] = 1e-4
        slope = (
            oracle.tsne_cost(joint.tolist(), (exact + step).tolist())
            - oracle.tsne_cost(joint.tolist(), (exact - step).tolist())
        ) / 2e-4
        assert gradient[point, axis] == pytest.approx(slope, abs=2e-4)
    before = oracle.tsne_cost(joint.tolist(), (1e-4 * exact).tolist())
    after = oracle.tsne_cost(joint.tolist(), _descend(joint, 1e-4 * places).tolist())
    assert after < 0.7 * before


def test_the_map_keeps_groups_together_and_is_always_the_same() -> None:
    chance = np.random.default_rng(1)
    centers = chance.standard_normal((5, 16))
    labels = np.arange(200) % 5
    vectors = (centers[labels] + 0.3 * chance.standard_normal((200, 16))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    places = layout(vectors)
    np.testing.assert_array_equal(places, layout(vectors))
    flat = places.astype(float)
    distances = np.linalg.norm(flat[:, None] - flat[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(axis=1)] == labels).mean() > 0.95
    assert places.max() == 65535


@pytest.mark.parametrize(("count", "dim"), [(0, 4), (1, 4), (2, 4), (3, 4), (7, 1), (50, 2)])
def test_maps_of_few_or_equal_images(count: int, dim: int) -> None:
    vectors = np.zeros((count, dim), dtype=np.float32)
    vectors[:, 0] = 1
    places = layout(vectors)
    assert places.shape == (count, 2)


def test_more_images_than_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    from cbml.gallery import layout as module

    monkeypatch.setattr(module, "LANDMARKS", 60)
    chance = np.random.default_rng(1)
    labels = np.arange(300) % 4
    vectors = chance.standard_normal((4, 16))[labels] + 0.2 * chance.standard_normal((300, 16))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    flat = module.layout(vectors).astype(float)
    distances = np.linalg.norm(flat[:, None] - flat[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(axis=1)] == labels).mean() > 0.95


def test_two_models_side_by_side(gallery: Gallery, second: Gallery) -> None:
    moves = counterparts(gallery, second), counterparts(second, gallery)
    for here, there in enumerate(moves[0].tolist()):
        assert gallery.images[here].name == second.images[there].name
    queries = gallery.image_query(int(gallery.ids[4])), second.image_query(int(second.ids[4]))
    sides = compare_search((gallery, second), queries, moves, 8)
    orders = [
        [result.name for result in one.search(query, SearchOptions(k=500)).results]
        for one, query in zip((gallery, second), queries, strict=True)
    ]
    for side in (0, 1):
        assert [result["name"] for result in sides[side]["results"]] == orders[side][:8]
        for result in sides[side]["results"]:
            assert result["other_rank"] == orders[1 - side].index(result["name"]) + 1
            assert result["moved"] == result["other_rank"] - result["rank"]


def test_counterparts_of_images_that_are_not_there(
    gallery: Gallery, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "class 1", tmp_path / "p" / "class 1")
    (tmp_path / "p" / "class 1" / "0.png").rename(tmp_path / "p" / "class 1" / "other name.png")
    small.built(tmp_path / "p", tmp_path / "g")
    with Gallery(tmp_path / "g") as part:
        found = counterparts(gallery, part)
    expected = [image.label == "class 1" for image in gallery.images]
    assert (found >= 0).tolist() == expected


def calibration() -> MatchProbability:
    """Learned from classes of which some have room and some have none."""
    chance = np.random.default_rng(3)
    labels = np.repeat(np.arange(60), 6)
    room = np.where(np.arange(60) < 30, 0.3, 1.0)[:, None]
    rows = (room * chance.standard_normal((60, 8)))[labels] + np.eye(8)[0]
    rows += 0.3 * chance.standard_normal((360, 8))
    return MatchProbability.fit(rows, labels)


def test_probabilities_are_those_of_the_calibration(folder: Path, tmp_path: Path) -> None:
    listed = [one for one in list_images(folder) if one.label is not None]
    for _ in range(2):  # the second build has nothing to do and changes nothing
        build(small.model(), listed, tmp_path / "g", calibration=calibration())
    with Gallery(tmp_path / "g") as opened:
        names = np.array([image.label for image in opened.images])
        vectors = opened.store.vectors(opened.ids)
        fitted = calibration().for_gallery(vectors, names)
        query = opened.image_query(0)
        everything = opened.search(query, SearchOptions(k=500)).results
        expected = fitted.probability(
            np.array([result.similarity for result in everything]),
            own=True,
        )
        found = np.array([result.probability for result in everything])
        np.testing.assert_allclose(found, expected, atol=1e-6)
        # As an image from elsewhere it has one more right image to find.
        stranger = opened.search(Query(query.vector, query.signature), SearchOptions(k=500)).results
        by_id = {result.id: result.probability or 0 for result in stranger}
        assert all(by_id[result.id] > (result.probability or 0) for result in everything)
        limit = float(np.median(found))
        some = opened.search(query, SearchOptions(k=500, min_probability=limit))
        assert [result.id for result in some.results] == [
            result.id for result in everything if (result.probability or 0) >= limit
        ]
        # The filter does not change what the others are worth.
        few = opened.search(query, SearchOptions(k=500, label="class 1")).results
        by_id = {result.id: result.probability or 0 for result in everything}
        assert [result.probability for result in few] == [by_id[result.id] for result in few]


def test_a_few_images_without_a_label_do_not_make_the_labels_unknown(
    folder: Path, tmp_path: Path
) -> None:
    listed = list_images(folder)
    assert [one.label for one in listed].count(None) == 1
    build(small.model(), listed, tmp_path / "mostly", calibration=calibration())
    with Gallery(tmp_path / "mostly") as opened:
        assert opened.state.calibration is not None
        assert opened.state.calibration.own_positives == small.EACH - 1
    # One of six is too many.
    some = [one for one in listed if one.label in (None, "class 1")]
    build(small.model(), some, tmp_path / "some", calibration=calibration())
    with Gallery(tmp_path / "some") as opened:
        assert opened.state.calibration is not None
        assert opened.state.calibration.own_positives == calibration().positives != small.EACH - 1


@pytest.mark.parametrize("seed", range(6))
def test_groups_of_near_duplicates_are_those_of_plain_loops(seed: int) -> None:
    chance = np.random.default_rng(seed)
    few = chance.integers(0, 256, (12, 192))
    noise = chance.integers(-TOLERANCE, TOLERANCE + 1, (80, 192)) * (chance.random((80, 1)) < 0.7)
    rows = np.clip(few[chance.integers(12, size=80)] + noise // chance.integers(1, 4), 0, 255)
    expected: list[list[int]] = []
    for index, row in enumerate(rows):
        if not any(index in group for group in expected):
            free = [n for n in range(index + 1, 80) if not any(n in group for group in expected)]
            near = [n for n in free if np.abs(rows[n] - row).max() <= TOLERANCE]
            expected += [[index, *near]] if near else []
    assert expected
    assert near_duplicate_groups(rows.astype(np.uint8)) == expected
