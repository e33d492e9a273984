"""The instruction sets of this machine, as parameters of tests."""

from slow import slow

from linattn._core import settings

BEST, *OTHERS = settings.available_isas()
#: All of them, those that are not the best in the slow tests.
ISAS = [BEST, *slow(*OTHERS)]
