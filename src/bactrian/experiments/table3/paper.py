"""Table 3 beside the paper's, for ``bactrian reproduce``."""

from __future__ import annotations

from pathlib import Path

from bactrian.experiments.paper_table import Follow, PaperTable
from bactrian.experiments.table3.corel import ScoreSettings
from bactrian.experiments.table3.corel_data import corel_folder, read_corel
from bactrian.experiments.table3.gallery import table3_gallery
from bactrian.experiments.table3.learners import Limits
from bactrian.experiments.table3.table import Table3Settings, run_table3
from bactrian.experiments.table3.text import HEADINGS, table3_rows, worse_than_nodes
from bactrian.vision.cache import ArrayCache
from bactrian.vision.classifiers import BoostingSettings

#: Few images, weak node scores, one split: to see that everything runs.
_QUICK = Table3Settings(
    scores=ScoreSettings(
        n_superpixels=60,
        n_textons=8,
        n_colours=8,
        n_structures=8,
        boosting=(BoostingSettings(rounds=5, trees=8, least_leaf=4, n_features=20, learning_rate=0.3),),
        n_folds=2,
        stages=1,
    ),
    n_drawn=8,
    n_train=4,
    n_splits=1,
    priors=(1.0,),
    limits=Limits(tolerance=1e-3, max_iterations=100),
)


def run(data: Path, *, quick: bool = False, progress: Follow = lambda _: None, cache: Path | None = None) -> PaperTable:
    """Run every row on every split; ``cache`` names a folder that keeps features and node scores for the next time.

    ``quick`` takes eight images and weak node scores, to see that everything runs.
    """
    corel = read_corel(corel_folder(data))
    settings = _QUICK if quick else Table3Settings()
    table = run_table3(corel, settings, ArrayCache(cache), progress)
    notes = (
        *(("QUICK: eight images and weak node scores; the figures mean nothing",) if quick else ()),
        "superpixel: part of the superpixels, pixel: part of the pixels with the right class, in test images; paper: "
        "superpixels",
        "rbp: residual belief propagation with every learner's weights; matched: the entropy that it learned with",
        "against node scores: points of superpixel accuracy above them (95 % of resamples of the test images)",
        "violation and moment gap: the worst of the splits; BP converges: part of the test images; seconds: a split, "
        "features and node scores not counted",
        worse_than_nodes(table),
        *table.choices,
        f"{table.seconds:.0f} s in all",
    )
    title = f"Table 3: {settings.n_drawn} Corel images, {settings.n_splits} splits, mean (deviation)"
    return PaperTable(title, HEADINGS, tuple(table3_rows(table)), notes, (table3_gallery(table),))
