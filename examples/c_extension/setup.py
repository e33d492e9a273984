"""python setup.py build_ext --inplace: the module of attend.c."""

from setuptools import Extension, setup

import linattn

setup(
    name="attend",
    ext_modules=[Extension("attend", ["attend.c"], include_dirs=[linattn.get_include()])],
)
