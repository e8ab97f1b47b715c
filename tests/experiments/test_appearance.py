"""The appearance of superpixels, and the cache of node scores, on small synthetic images."""

import numpy as np
import pytest
from images import quarters

from bactrian.experiments.table3.appearance import (
    N_FILTERS,
    adjacency_means,
    appearance,
    filter_responses,
    lab_of,
    look_alike_weights,
    nearest,
    window_weights,
)
from bactrian.experiments.table3.cache import ArrayCache, arrays_checksum
from bactrian.vision import TextonVocabulary, segment_image, superpixel_features, superpixels


def test_filters_answer_to_what_they_look_for():
    # A Gaussian keeps a constant and the others vanish on it; derivatives tell vertical from horizontal edges.
    flat = filter_responses(np.full((20, 20, 3), 50.0))
    np.testing.assert_allclose(flat[..., 9:], 0.0, atol=1e-9)
    assert flat.shape == (20, 20, N_FILTERS)
    edge = np.zeros((40, 40, 3))
    edge[:, 20:, 0] = 100.0
    across, along = np.abs(filter_responses(edge)[20, 20, [13, 14]])
    assert across > 10.0
    assert along == pytest.approx(0.0, abs=1e-9)


def test_nearest_centre_agrees_with_distances():
    rng = np.random.default_rng(0)
    points, centres = rng.standard_normal((50, 3)), rng.standard_normal((7, 3))
    distances = np.linalg.norm(points[:, None] - centres[None], axis=2)
    assert np.array_equal(nearest(points, centres), distances.argmin(axis=1))


def test_a_vocabulary_is_the_same_for_the_same_seed_and_needs_images():
    images = [quarters(seed=k)[0] for k in range(2)]
    first, second = (TextonVocabulary.learn(images, n_textons=6, n_colours=4, n_structures=8, seed=3) for _ in range(2))
    assert np.array_equal(first.textons, second.textons)
    assert first.textons.shape == (6, N_FILTERS)
    # Four colours with noise: the centres are those of the quarters.
    assert np.sort(first.colours[:, 0]) == pytest.approx(
        np.sort(lab_of(images[0])[[5, 5, 35, 35], [5, 55, 5, 55], 0]), abs=15
    )
    with pytest.raises(ValueError, match="images is empty"):
        TextonVocabulary.learn([])
    with pytest.raises(ValueError, match="n_textons must be at least 1, found 0"):
        TextonVocabulary.learn(images, n_textons=0)


def test_a_vocabulary_of_a_constant_image_is_smaller():
    vocabulary = TextonVocabulary.learn([np.full((10, 10, 3), 90, dtype=np.uint8)], n_textons=8, n_colours=8)
    assert len(vocabulary.textons) == len(vocabulary.colours) == 1


def test_appearance_agrees_with_plain_statistics():
    image, _ = quarters()
    segments = superpixels(image, n_superpixels=20)
    vocabulary = TextonVocabulary.learn([image], n_textons=5, n_colours=4, n_structures=8)
    found = appearance(image, segments, vocabulary)
    lab = lab_of(image)
    for k in range(segments.max() + 1):
        inside = segments == k
        np.testing.assert_allclose(found.colour[k, :3], lab[inside].mean(axis=0))
        np.testing.assert_allclose(found.colour[k, 3:6], lab[inside].std(axis=0))
        rows, columns = np.nonzero(inside)
        np.testing.assert_allclose(found.centre[k], [(rows.mean() + 0.5) / 40, (columns.mean() + 0.5) / 60])
        assert found.size[k] == inside.sum()
        counts = np.histogram(lab[inside][:, 0], bins=8, range=(0, 100))[0]
        np.testing.assert_allclose(found.histograms[k, :8], counts / counts.sum())
        np.testing.assert_allclose(found.shape[k, 1], rows.std())
    for part in (found.textons, found.colours, found.histograms / 3.0):
        np.testing.assert_allclose(part.sum(axis=1), 1.0)
    assert np.isfinite(found.own).all()


def test_features_are_finite_on_extreme_images():
    pictures = [np.zeros((12, 16, 3), np.uint8), np.full((12, 16, 3), 255, np.uint8), quarters(12, 16)[0]]
    vocabulary = TextonVocabulary.learn(pictures[2:], n_textons=5, n_colours=4, n_structures=8)
    for picture in pictures:
        image = segment_image(picture, n_superpixels=6)
        features = superpixel_features(image, vocabulary)
        assert features.shape[0] == image.n_superpixels
        assert np.isfinite(features).all()
    assert superpixel_features(segment_image(pictures[0], segments=np.zeros((12, 16), int)), vocabulary).shape[0] == 1


def test_features_of_a_mirrored_image_are_mirrored():
    image, _ = quarters()
    vocabulary = TextonVocabulary.learn([image], n_textons=4, n_colours=4, n_structures=8)
    segments = superpixels(image, n_superpixels=20)
    plain = appearance(image, segments, vocabulary)
    mirrored = appearance(image[:, ::-1], segments[:, ::-1], vocabulary)
    np.testing.assert_allclose(mirrored.colour, plain.colour)
    np.testing.assert_allclose(mirrored.place[:, 0], plain.place[:, 0])
    np.testing.assert_allclose(mirrored.place[:, 1], 1.0 - plain.place[:, 1])
    np.testing.assert_allclose(mirrored.shape[:, :3], plain.shape[:, :3])


def test_means_over_neighbours():
    edges, weights = np.array([[0, 1], [1, 2]]), np.array([1.0, 3.0])
    values = np.array([[1.0], [2.0], [6.0], [9.0]])
    np.testing.assert_allclose(adjacency_means(values, edges, weights), [[2.0], [(1.0 + 18.0) / 4.0], [2.0], [9.0]])


def test_windows_are_means_and_look_where_they_say():
    centre = np.array([[0.1, 0.5], [0.5, 0.5], [0.9, 0.5], [0.5, 0.1], [0.5, 0.9]])
    windows = window_weights(centre, np.ones(5), (100, 100))
    for weights in windows.values():
        np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert windows["above"][1].argmax() == 0
    assert windows["below"][1].argmax() == 2
    assert windows["left"][1].argmax() == 3
    assert windows["right"][1].argmax() == 4
    np.testing.assert_allclose(windows["image"], 0.2)


def test_look_alikes_are_near_and_of_like_colour():
    centre = np.array([[0.1, 0.5], [0.2, 0.5], [0.9, 0.5], [0.1, 0.4]])
    colour = np.array([[50.0, 0, 0, 5], [50, 0, 0, 5], [50, 0, 0, 5], [50, 6, 0, 5]])
    size = np.array([1.0, 2.0, 1.0, 1.0])
    weights = look_alike_weights(centre, size, (100, 200), colour)
    near = np.exp([0.0, -0.5 * 0.1**2 / 0.35**2, -0.5 * 0.8**2 / 0.35**2, -0.5 * (0.2 / 0.35) ** 2 - 0.5])
    np.testing.assert_allclose(weights[0], near * size / (near @ size))
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)


def test_a_cache_keeps_tells_apart_and_survives_damage(tmp_path):
    calls = []

    def make(value):
        def made():
            calls.append(value)
            return {"x": np.array([value])}

        return made

    cache = ArrayCache(tmp_path / "über")
    assert cache.get("a", {"k": 1}, make(5))["x"].tolist() == [5]
    assert cache.get("a", {"k": 1}, make(6))["x"].tolist() == [5]
    assert cache.get("a", {"k": 2}, make(7))["x"].tolist() == [7]
    (path,) = [p for p in (tmp_path / "über").iterdir() if cache.get("a", {"k": 1}, make(0)) and p.stat().st_size][:1]
    path.write_bytes(path.read_bytes()[:40])
    values = {cache.get("a", {"k": k}, make(8))["x"].item() for k in (1, 2)}
    assert 8 in values
    assert calls == [5, 7, 8]
    assert not [p for p in (tmp_path / "über").iterdir() if p.name.startswith(".")]
    assert ArrayCache(None).get("a", {"k": 1}, make(9))["x"].tolist() == [9]
    with pytest.raises(ValueError, match="no array may be named 'key'"):
        cache.get("b", 1, lambda: {"key": np.zeros(1)})


def test_checksums_see_shape_type_and_content():
    one = np.arange(4, dtype=np.int64)
    others = [one.reshape(2, 2), one.astype(np.int32), one + 1]
    assert len({arrays_checksum(array) for array in (one, *others)}) == 4
    assert arrays_checksum(one) == arrays_checksum(one.copy())
