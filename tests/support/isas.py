"""The instruction sets of this machine, as parameters of tests."""

from slow import slow

from linattn import _config

BEST, *OTHERS = _config.available_isas()
#: All of them, those that are not the best in the slow tests.
ISAS = [BEST, *slow(*OTHERS)]
