/* describe.h: the tables of operators, operands and maps, as Python sees them. */
#ifndef LA_DESCRIBE_H
#define LA_DESCRIBE_H

#include <Python.h>

/* Adds `operators`, `operands` and `maps`, described in describe.c, to the module; 0,
 * or -1. */
int la_describe(PyObject *module);

#endif
