/* describe.h: the tables of operators and maps, as Python sees them. */
#ifndef LA_DESCRIBE_H
#define LA_DESCRIBE_H

#include <Python.h>

/* Adds `operators` and `maps` to the module (describe.c has what they hold); 0, or
 * -1. */
int la_describe(PyObject *module);

#endif
