"""python setup.py build_ext --inplace: the module of attend_cython.pyx; needs Cython."""

from Cython.Build import cythonize
from setuptools import Extension, setup

import linattn

module = Extension("attend_cython", ["attend_cython.pyx"], include_dirs=[linattn.get_include()])
setup(name="attend_cython", ext_modules=cythonize([module], language_level=3))
