"""The vision kit on small synthetic images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bactrian.experiments.table3.cache import ArrayCache, arrays_checksum
from bactrian.vision import (
    TextonVocabulary,
    majority_labels,
    plot_labels,
    region_adjacency,
    segment_image,
    superpixel_features,
    superpixels,
    to_pixels,
)
from bactrian.vision.appearance import (
    N_FILTERS,
    adjacency_means,
    appearance,
    filter_responses,
    lab_of,
    look_alike_weights,
    nearest,
    window_weights,
)


def quarters(height: int = 40, width: int = 60, noise: float = 10.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four coloured quarters with noise, and their numbers."""
    labels = np.zeros((height, width), dtype=np.int64)
    labels[height // 2 :] += 2
    labels[:, width // 2 :] += 1
    colours = np.array([[200, 40, 40], [40, 160, 60], [40, 60, 200], [220, 220, 210]], dtype=float)
    drawn = colours[labels] + noise * np.random.default_rng(seed).standard_normal((height, width, 3))
    return np.clip(drawn, 0, 255).astype(np.uint8), labels


def is_connected(mask: np.ndarray) -> bool:
    """Flood fill, by hand."""
    todo, left = [tuple(np.argwhere(mask)[0])], set(map(tuple, np.argwhere(mask)))
    left.discard(todo[0])
    while todo:
        r, c = todo.pop()
        for step in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)):
            if step in left:
                left.discard(step)
                todo.append(step)
    return not left


@pytest.mark.parametrize("method", ["slic", "normalised-cuts"])
def test_superpixels_are_connected_numbered_and_follow_colours(method):
    image, labels = quarters()
    segments = superpixels(image, method=method, n_superpixels=24)
    numbers = np.unique(segments)
    assert segments.shape == labels.shape
    assert numbers.tolist() == list(range(len(numbers)))
    assert 4 <= len(numbers) <= 60
    assert all(is_connected(segments == k) for k in numbers)
    majority = majority_labels(segments, labels, 4)
    assert np.mean(to_pixels(segments, majority) == labels) > 0.98


def test_superpixels_do_not_depend_on_the_image_type():
    image, _ = quarters()
    assert np.array_equal(superpixels(image), superpixels(image / 255.0))


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (np.zeros((4, 4)), ValueError, r"image must have shape \(height, width, 3\), found \(4, 4\)"),
        (np.zeros((0, 4, 3)), ValueError, "image must have shape"),
        (
            np.zeros((4, 4, 3), dtype=np.int32),
            TypeError,
            "image must be uint8, or floats from 0 to 1, found dtype int32",
        ),
        (np.full((4, 4, 3), 2.0), ValueError, "between 0 and 1"),
        (np.full((4, 4, 3), np.nan), ValueError, "between 0 and 1"),
    ],
)
def test_bad_images_are_refused(image, error, message):
    with pytest.raises(error, match=message):
        superpixels(image)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "watershed"}, "method must be one of slic, normalised-cuts, found 'watershed'"),
        ({"n_superpixels": 0}, "n_superpixels must be at least 1, found 0"),
        ({"compactness": 0.0}, "compactness must be positive"),
        ({"threshold": float("nan")}, "threshold must be positive"),
    ],
)
def test_bad_options_of_superpixels_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        superpixels(quarters()[0], **options)


@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.integers(2, 7))
def test_adjacency_agrees_with_a_loop_over_pixels(seed, height, width):
    rng = np.random.default_rng(seed)
    segments = np.unique(rng.integers(0, 4, (height, width)), return_inverse=True)[1].reshape(height, width)
    image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    lab = lab_of(image)
    lengths: dict = {}
    contrasts: dict = {}
    upright: dict = {}
    for r in range(height):
        for c in range(width):
            for down, right in ((1, 0), (0, 1)):
                if r + down < height and c + right < width:
                    a, b = int(segments[r, c]), int(segments[r + down, c + right])
                    if a != b:
                        pair = (min(a, b), max(a, b))
                        lengths[pair] = lengths.get(pair, 0) + 1
                        distance = np.sqrt(((lab[r, c] - lab[r + down, c + right]) ** 2).sum())
                        contrasts.setdefault(pair, []).append(distance)
                        upright.setdefault(pair, []).append(down)
    found = region_adjacency(segments, image)
    assert [tuple(edge) for edge in found.edges.tolist()] == sorted(lengths)
    assert found.boundary_length.tolist() == [lengths[pair] for pair in sorted(lengths)]
    np.testing.assert_allclose(found.contrast, [np.mean(contrasts[pair]) for pair in sorted(lengths)])
    np.testing.assert_allclose(found.verticality, [np.mean(upright[pair]) for pair in sorted(lengths)])
    for pair, distance in zip(found.edges, found.mean_contrast, strict=True):
        means = [lab[segments == region].mean(axis=0) for region in pair]
        assert distance == pytest.approx(np.sqrt(((means[0] - means[1]) ** 2).sum()))


def test_a_single_region_has_no_edges():
    found = region_adjacency(np.zeros((3, 3), dtype=int), np.zeros((3, 3, 3), dtype=np.uint8))
    assert found.edges.shape == (0, 2)
    assert found.contrast.shape == (0,)


def test_majority_takes_the_lowest_of_equals_and_leaves_out_unknown_pixels():
    segments = np.array([[0, 0, 1, 1, 2]])
    assert majority_labels(segments, np.array([[2, 1, -1, 2, -1]]), 3).tolist() == [1, 2, -1]


@pytest.mark.parametrize(
    ("segments", "labels", "error", "message"),
    [
        ([[0, 2]], [[0, 0]], ValueError, "no pixel has number 1"),
        ([[-1, 0]], [[0, 0]], ValueError, "must not be negative"),
        ([[0.0, 1.0]], [[0, 0]], TypeError, "segments must hold integers"),
        ([[0, 1]], [[0]], ValueError, "labels must have the shape"),
        ([[0, 1]], [[0, 3]], ValueError, "labels must be below n_labels = 3, found 3"),
        ([[0, 1]], [[0.0, 1.0]], TypeError, "labels must be integers"),
    ],
)
def test_bad_segments_and_labels_are_refused(segments, labels, error, message):
    with pytest.raises(error, match=message):
        majority_labels(np.array(segments), np.array(labels), 3)


def test_values_of_regions_spread_over_pixels():
    segments = np.array([[0, 1], [1, 0]])
    assert to_pixels(segments, [5, 7]).tolist() == [[5, 7], [7, 5]]
    assert to_pixels(segments, np.eye(2)).shape == (2, 2, 2)
    with pytest.raises(ValueError, match=r"one entry per region: expected shape \(2,\)"):
        to_pixels(segments, [1, 2, 3])


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
    first, second = (TextonVocabulary.learn(images, n_textons=6, n_colours=4, seed=3) for _ in range(2))
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
    vocabulary = TextonVocabulary.learn([image], n_textons=5, n_colours=4)
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
    vocabulary = TextonVocabulary.learn(pictures[2:], n_textons=5, n_colours=4)
    for picture in pictures:
        image = segment_image(picture, n_superpixels=6)
        features = superpixel_features(image, vocabulary)
        assert features.shape[0] == image.n_superpixels
        assert np.isfinite(features).all()
    assert superpixel_features(segment_image(pictures[0], segments=np.zeros((12, 16), int)), vocabulary).shape[0] == 1


def test_features_of_a_mirrored_image_are_mirrored():
    image, _ = quarters()
    vocabulary = TextonVocabulary.learn([image], n_textons=4, n_colours=4)
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


def test_labels_are_drawn_with_what_they_are_of(tmp_path):
    pytest.importorskip("matplotlib")
    picture, labels = quarters()
    names = np.array(["sea", "sand", "sky", "snow"])[labels]
    truth = names.copy()
    truth[0, :3] = ["", "", "sky"]
    marginals = np.full((*labels.shape, 4), 0.1)
    np.put_along_axis(marginals, labels[..., None], 0.7, axis=2)
    figure = plot_labels(names, picture, truth=truth, marginals=marginals)
    panels = {axis.get_title(): axis.images[0].get_array() for axis in figure.axes}
    assert [*panels] == ["picture", "truth", "labels", "unsure", "wrong"]
    assert panels["truth"].mask.sum() == panels["wrong"].mask.sum() == 2
    assert panels["wrong"].sum() == 1
    np.testing.assert_allclose(panels["unsure"], 0.3)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sand", "sea", "sky", "snow"]
    figure.savefig(tmp_path / "labels.png")
    volume = plot_labels(np.stack([labels, labels + 1, labels]), layer=1).axes[0].images[0].get_array()
    np.testing.assert_array_equal(volume, labels)
    with pytest.raises(ValueError, match=r"truth must cover the labels, of shape \(40, 60\), found shape \(4, 4\)"):
        plot_labels(labels, truth=labels[:4, :4])
    unknown = plot_labels(np.full((2, 3), -1))
    assert unknown.axes[0].images[0].get_array().mask.all()
