"""Learning on many machines: ranks that hold parts of the data and add up what they find."""

from bactrian.parallel.communicator import Alone, Communicator

__all__ = ["Alone", "Communicator"]
