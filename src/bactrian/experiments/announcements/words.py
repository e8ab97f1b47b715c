"""Words of made-up announcements: names, buildings, subjects. Those to learn from and those to test on share none.

Some are meant to mislead: surnames that are also things or places (Hall, Wood, Park), buildings named like people.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Vocabulary:
    """What one split draws from."""

    first_names: tuple[str, ...]
    surnames: tuple[str, ...]
    buildings: tuple[str, ...]
    schools: tuple[str, ...]
    groups: tuple[str, ...]
    subjects: tuple[str, ...]
    things: tuple[str, ...]
    hosts: tuple[str, ...]  #: computers from which announcements are posted


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split(","))


TRAINING = Vocabulary(
    first_names=_words(
        "Adele Ahmed Alice Andrew Anita Anton Beatrice Boris Brian Carla Charles Chen Claire Colin Dagmar Daniel "
        "Deepa Diego Edith Elena Emil Erika Farah Felix Fiona Gabriel George Gita Hannah Harold Hiro Ingrid Isaac "
        "Jamal Janet Joseph Julia Karim Kenneth Laura Leo Lucia Marcus Maria Mei Miriam Nadia Nathan Olga Oscar Paul "
        "Petra Rajesh Rebecca Robert Rosa Samuel Sarah Stefan Susan Tariq Thomas Ursula Victor Wei Yusuf Zoe"
    ),
    surnames=_words(
        "Abbott Adeyemi Albrecht Anand Barker Bauer Bergman Bishop Blackwood Bose Brandt Cardoso Castillo Chang Cole "
        "Costa Dalton Davies Demir Dubois Eriksen Farrell Ferreira Fischer Fontaine Frost Garcia Gibson Goldberg Grant "
        "Gupta Hall Hansen Harris Hayashi Hoffman Hughes Iyer Jansen Kaplan Keller Kim Kowalski Kumar Lang Lindqvist "
        "Lopez Marino Mendes Miller Moreau Murphy Nakamura Novak Okafor Olsen Park Patel Petrov Quinn Reyes Richter "
        "Rossi Sato Schneider Shah Silva Singh Sokolov Stein Tanaka Torres Varga Wagner Watson Weber Wong Wood Young"
    ),
    buildings=_phrases(
        "Ashworth Hall, Bellamy Building, Carver Laboratory, Dunmore Hall, Eastgate Center, Fairbanks Hall, Grantham "
        "House, Hollis Hall, Ingram Library, Kessler Building, Langdon Hall, Marlowe Center, Newcomb Hall, Osgood "
        "Laboratory, Pemberton Hall, Radcliff House, Sutton Hall, Thornton Building, Waverly Center, Yardley Hall"
    ),
    schools=_phrases(
        "University of Westmark, Calder Institute of Technology, Northfield College, Harrow State University, "
        "University of Lindenburg, Saint Anselm University, Brackwater College, Institute for Advanced Machines, "
        "Copperhill Laboratories, Delmar Research Center, Technical University of Ostrava Nova, Kingsport University"
    ),
    groups=_phrases(
        "Robotics, Machine Learning, Public Policy, Economics, Theory, Graphics, Applied Mathematics, Materials, "
        "Speech, Operations Research, History, Computational Biology, Design, Software Engineering"
    ),
    subjects=_phrases(
        "sparse linear models, planning under uncertainty, the price of water, fault tolerant storage, walking "
        "machines, random walks on graphs, the labour market of port towns, reading medical images, type systems for "
        "concurrent programs, auctions with few bidders, ageing concrete, protein folding, learning from few examples, "
        "indexing large archives, fluid motion, cooperative games, digital maps of old cities, error correcting codes"
    ),
    things=_phrases(
        "methods, algorithms, experiments, data, systems, users, proofs, measurements, designs, tools, estimates, "
        "policies, examples, limits, costs, assumptions"
    ),
    hosts=_words("atlas.westmark.edu boreas.cs.westmark.edu ceres.westmark.edu"),
)

TESTING = Vocabulary(
    first_names=_words(
        "Aisha Alan Amelia Arjun Astrid Benjamin Bianca Bruno Camille Cecilia Dmitri Dorothy Eduardo Eleanor Esther "
        "Ethan Fatima Francis Greta Gustav Helen Hugo Ibrahim Irene Ivan Jasmine Jerome Joan Kamal Katarina Keiko Lars "
        "Leila Louis Magnus Margaret Mikhail Nikhil Noemi Omar Pablo Pauline Philip Priya Ramon Ruth Sanjay Sofia "
        "Sven Tamara Theodore Tomas Valerie Vikram Walter Xavier Yolanda Yuki Zainab"
    ),
    surnames=_words(
        "Aalto Acharya Amsel Armstrong Banerjee Becker Bellini Bloom Brooks Camargo Chandra Church Cooper Crane "
        "Delacroix Dietrich Donovan Duarte Dyer Engel Espinoza Fields Fitzgerald Forsberg Fujita Gallagher Gomez "
        "Greenberg Haddad Hartmann Holm Ibanez Ivanova Jimenez Johansson Kapoor Kendrick Kovacs Lane Laurent Liang "
        "Lombardi Mbeki Mercer Mills Moretti Nair Nielsen Ortega Osborne Pereira Popov Ramirez Rhodes Romano Saito "
        "Santos Sharma Spring Stone Suzuki Thorne Tremblay Underhill Vasquez Vogel Winter Yamada Zhou Ziegler"
    ),
    buildings=_phrases(
        "Archer Hall, Brightwell Building, Chandler Laboratory, Drummond Center, Everett Hall, Foxcroft House, "
        "Gresham Building, Hathaway Hall, Jessop Library, Kirkland Hall, Lockwood Center, Merriman Hall, Norcross "
        "Building, Oakley House, Prescott Hall, Rosewall Laboratory, Stafford Center, Tilden Hall, Whitcombe Hall"
    ),
    schools=_phrases(
        "University of Marrow Bay, Ellison Institute, Greyfriars College, Tidewater State University, University of "
        "Sankt Veit, Pinecrest University, Academy of Engineering in Brno Nova, Halcyon Laboratories, Redstone "
        "Research Institute, Queensferry University"
    ),
    groups=_phrases(
        "Vision, Databases, Philosophy, Statistics, Networks, Civil Engineering, Linguistics, Human Computer "
        "Interaction, Physics, Management Science, Architecture, Logic"
    ),
    subjects=_phrases(
        "tracking faces in crowds, query planning, what chance is, missing values, routing without maps, bridges that "
        "bend, the grammar of questions, gestures as commands, cold atoms, queues with impatient customers, houses for "
        "hot climates, proofs by computer, learning by imitation, compression of sound, markets for electricity"
    ),
    things=_phrases(
        "models, theorems, observations, records, networks, readers, arguments, simulations, prototypes, programs, "
        "forecasts, rules, cases, bounds, prices, hypotheses"
    ),
    hosts=_words("dione.marrowbay.edu europa.ece.marrowbay.edu fauna.marrowbay.edu"),
)
