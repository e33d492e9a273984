/* run.c: see run.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "run.h"

#include "interrupt.h"

int
la_run_python(const struct la_call *call)
{
    /* Short calls keep it: another thread that takes it may hold it for 5 ms. */
    PyThreadState *const state = la_is_long(call) ? PyEval_SaveThread() : NULL;
    const enum la_status status = la_run(call, &la_interrupt_watch);
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    if (status == LA_NO_MEMORY) {
        PyErr_NoMemory();
    }
    else if (status == LA_OVERRUN) {
        PyErr_SetString(PyExc_SystemError,
                        "linattn: a kernel needs more scratch than it was given");
    }
    else if (status == LA_OVERLAP) {
        char name[64];
        la_form_name(call->form, name, sizeof(name));
        PyErr_Format(PyExc_ValueError,
                     "%s: begin and end give two sequences the same token; expected "
                     "ranges of tokens that do not overlap",
                     name);
    }
    return status == LA_DONE ? 0 : -1;
}
