# cython: boundscheck=False
"""An extension module in Cython that calls linattn's operators without the GIL."""

cdef extern from "<linattn.h>" nogil:
    ctypedef struct linattn_array:
        void *data
        int dtype
        int ndim
        const Py_ssize_t *shape
        const Py_ssize_t *strides
        double number

    ctypedef struct linattn_api:
        int (*find)(const char *name) noexcept nogil
        int (*call)(int op, const linattn_array *operands, int count, int threads) noexcept nogil
        const char *(*status_text)(int status) noexcept nogil

    enum:
        LINATTN_OK
        LINATTN_FLOAT32
        LINATTN_NUMBER

cdef extern from "<linattn.h>":
    const linattn_api *linattn_import() except NULL


cdef const linattn_api *linattn = linattn_import()
cdef int CAUSAL = linattn.find(b"causal_elu")
cdef int GATED = linattn.find(b"gated_identity")


cdef linattn_array array(const float *data, int ndim, const Py_ssize_t *shape,
                         const Py_ssize_t *strides) noexcept nogil:
    return linattn_array(<void *>data, LINATTN_FLOAT32, ndim, shape, strides, 0)


cdef linattn_array number(double x) noexcept nogil:
    return linattn_array(NULL, LINATTN_NUMBER, 0, NULL, NULL, x)


cdef int call(int op, linattn_array *x, int count) except -1 nogil:
    cdef int status = linattn.call(op, x, count, 0)
    if status != LINATTN_OK:
        with gil:
            raise ValueError(linattn.status_text(status).decode())
    return 0


def causal(const float[:, :, :] q, const float[:, :, :] k, const float[:, :, :] v,
           float[:, :, :] o):
    """o[...] = linattn.causal(q, k, v), for heads of tokens."""
    cdef linattn_array[6] x
    with nogil:
        x[0] = array(&q[0, 0, 0], 3, q.shape, q.strides)
        x[1] = array(&k[0, 0, 0], 3, k.shape, k.strides)
        x[2] = array(&v[0, 0, 0], 3, v.shape, v.strides)
        x[3] = number(1)  # scale
        x[4] = number(1e-6)  # eps
        x[5] = array(&o[0, 0, 0], 3, o.shape, o.strides)
        call(CAUSAL, x, 6)


def gated(const float[:, :, :] q, const float[:, :, :] k, const float[:, :, :] v,
          const float[:, :] g, float[:, :, :] o):
    """o[...] = linattn.gated(q, k, v, g), for heads of tokens."""
    cdef linattn_array[6] x
    with nogil:
        x[0] = array(&q[0, 0, 0], 3, q.shape, q.strides)
        x[1] = array(&k[0, 0, 0], 3, k.shape, k.strides)
        x[2] = array(&v[0, 0, 0], 3, v.shape, v.strides)
        x[3] = array(&g[0, 0], 2, g.shape, g.strides)
        x[4] = number(1)  # scale
        x[5] = array(&o[0, 0, 0], 3, o.shape, o.strides)
        call(GATED, x, 6)
