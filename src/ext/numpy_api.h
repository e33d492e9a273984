/* numpy_api.h: NumPy's C API.  gufunc.c fills its tables, once. */
#ifndef LA_NUMPY_API_H
#define LA_NUMPY_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#ifdef Py_TARGET_ABI3T
#define NPY_TARGET_VERSION NPY_2_5_API_VERSION
#else
#define NPY_TARGET_VERSION NPY_2_1_API_VERSION
#endif
#define PY_ARRAY_UNIQUE_SYMBOL la_array_api
#define PY_UFUNC_UNIQUE_SYMBOL la_ufunc_api
#ifndef LA_FILLS_NUMPY_API
#define NO_IMPORT_ARRAY
#define NO_IMPORT_UFUNC
#endif
#include <numpy/ndarrayobject.h>
#include <numpy/ufuncobject.h>

#ifndef _PyUFuncObject_GET_ITEM_DATA /* NumPy before 2.5 */
#define PyUFuncObject_fields PyUFuncObject
#define _PyUFuncObject_GET_ITEM_DATA(ufunc) (ufunc)
#define PyDataType_TYPENUM(descr) ((descr)->type_num)
#endif

_Static_assert(sizeof(npy_intp) == sizeof(ptrdiff_t), "npy_intp is ptrdiff_t");

#endif
