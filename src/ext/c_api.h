/* c_api.h: operators for other extensions, as linattn/include/linattn.h has them. */
#ifndef LA_C_API_H
#define LA_C_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Adds the capsule `_C_API` to the module, once its gufuncs are known; 0, or -1. */
int la_c_api_add(PyObject *module);

#endif
