"""The vision kit on small synthetic images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import quarters
from skimage.color import rgb2lab

from bactrian.vision import majority_labels, plot_labels, region_adjacency, superpixels, to_pixels


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
    lab = rgb2lab(image)
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
