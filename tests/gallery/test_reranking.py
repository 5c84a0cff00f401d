"""A gallery whose model names a reranker: its parts are kept, and its searches reranked."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import cbml
from cbml.errors import DamagedFile
from cbml.gallery import BuildSettings, Gallery, SearchOptions, build, list_images
from cbml.gallery import gallery as gallery_module
from cbml.gallery.storage import read_state, write_state
from cbml.index import DIML, RERANKERS
from cbml.models import Embedder
from cbml.outputs import Outputs
from tests.gallery import small

PART = "cells:4"


def model(seed: int = 1) -> Embedder:
    return Embedder("conv4", dim=8, seed=seed, reranker="diml").eval()


def built(folder: Path, gallery: Path, seed: int = 1, *, rebuild: bool = False) -> None:
    settings = BuildSettings(rebuild=rebuild)
    build(model(seed), list_images(folder), gallery, evaluate=cbml.evaluate, settings=settings)


@pytest.fixture(scope="module")
def reranked(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("galleries") / "reranked"
    built(folder, target)
    return target


def outputs_of(gallery: Gallery) -> Outputs:
    vectors = torch.from_numpy(gallery.store.vectors(gallery.ids))
    return Outputs(vectors, {PART: torch.from_numpy(gallery.state.parts[PART])})


def test_only_a_model_with_a_reranker_has_parts(gallery: Gallery, reranked: Path) -> None:
    assert gallery.state.parts == {}
    with Gallery(reranked) as opened:
        assert opened.state.parts[PART].shape == (len(opened), 16, 8)
        pixels = [opened.query(Path(image.path)) for image in opened.images[:3]]
        for query, image in zip(pixels, opened.images, strict=False):
            own = opened.image_query(image.id)
            np.testing.assert_allclose(query.parts[PART], own.parts[PART], atol=1e-5)
            np.testing.assert_allclose(query.vector, own.vector, atol=1e-5)


def test_results_are_in_the_order_of_the_reranker(reranked: Path, gallery: Gallery) -> None:
    changed = 0
    with Gallery(reranked) as opened:
        outputs = outputs_of(opened)
        for image in opened.images:
            own = opened.index_of(image.id)
            others = np.array([index for index in range(len(opened)) if index != own])
            query = outputs.map(lambda part, own=own: part[own : own + 1])
            scores = DIML()(query, outputs, torch.from_numpy(others)[None])[0].numpy()
            found = opened.search(opened.image_query(image.id)).results
            expected = others[np.argsort(-scores, kind="stable")][:10]
            assert [opened.index_of(result.id) for result in found] == expected.tolist()
            assert [result.rank for result in found] == list(range(1, 11))
            similarities = outputs.embeddings[own] @ outputs.embeddings[expected].T
            assert [result.similarity for result in found] == pytest.approx(
                similarities.tolist(), abs=1e-5
            )
            plain = gallery.search(gallery.image_query(image.id)).results
            changed += [result.id for result in plain] != [result.id for result in found]
    assert changed > len(gallery) // 2


def test_its_scores_are_those_of_the_reranked_order(reranked: Path) -> None:
    with Gallery(reranked) as opened:
        labeled = [index for index, image in enumerate(opened.images) if image.label]
        for index in labeled[:8]:
            own, results = opened.images[index], []
            for result in opened.search(
                opened.image_query(own.id), cbml.gallery.SearchOptions(k=len(opened))
            ).results:
                results.append(result.label == own.label)
            assert opened.state.scores is not None
            assert opened.state.scores.first_hits[index] == results.index(True) + 1


def test_only_the_nearest_are_reranked(reranked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = dataclasses.replace(RERANKERS["diml"], candidates=4)
    with Gallery(reranked) as opened:
        monkeypatch.setitem(RERANKERS, "diml", entry)
        query = opened.image_query(opened.images[0].id)
        found = opened.ranking(query).similarities
        assert (np.diff(found[4:]) <= 0).all()
        assert found[:4].min() >= found[4]


def test_parts_follow_the_images(folder: Path, tmp_path: Path) -> None:
    files, target = tmp_path / "files", tmp_path / "gallery"
    small.images(files)
    built(files, target)
    before = read_state(target)
    (files / "class 1" / "2.png").unlink()
    small.save(files / "class 9" / "new.png", 77)
    built(files, target)
    after = read_state(target)
    old = {image.name: before.parts[PART][i] for i, image in enumerate(before.images)}
    new = {image.name: after.parts[PART][i] for i, image in enumerate(after.images)}
    assert (len(new), len(old)) == (len(after.images), len(before.images))
    for name in new.keys() & old.keys():
        np.testing.assert_array_equal(new[name], old[name])
    assert any("new" in name for name in new.keys() - old.keys())
    built(files, target, seed=2, rebuild=True)
    assert not np.allclose(read_state(target).parts[PART], after.parts[PART])


def test_parts_that_are_missing_are_damage(reranked: Path, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "gallery"
    built(folder, target)
    state = read_state(target)
    write_state(target, dataclasses.replace(state, parts={}))
    with pytest.raises(DamagedFile, match="not a gallery of this program"):
        Gallery(target)
    half = {PART: state.parts[PART][:4]}
    write_state(target, dataclasses.replace(state, parts=half))
    with pytest.raises(DamagedFile, match="parts of"):
        Gallery(target)


def test_confusions_and_shallow_searches_follow_the_reranked_order(
    reranked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gallery(reranked) as opened:
        assert opened.state.scores is not None
        assert opened.state.scores.nearest is not None
        for image in opened.images:
            first = opened.search(opened.image_query(image.id)).results[0]
            index = opened.index_of(image.id)
            assert opened.state.scores.nearest[index] == opened.index_of(first.id)
        monkeypatch.setattr(gallery_module, "PROBABLE", 1)
        query = opened.query(Path(opened.images[2].path))
        options = SearchOptions(k=2)
        deep = opened.respond(query, options, opened.ranking(query))
        assert opened.search(query, options) == deep
