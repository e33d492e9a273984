/* run.c: see run.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "run.h"

#include "cpu.h"
#include "modes.h"
#include "os.h"

/* Checks for signals at most every LOOK_MS: taking the GIL may mean waiting. */
enum { LOOK_MS = 30 };

/* When this thread last checked, in any call: NumPy may split one long call into many
 * short ones. */
static _Thread_local int64_t last_look;

/* `callers`: the modes in which Python runs. */
static int
poll(void *callers)
{
    if (la_clock_ms() - last_look < LOOK_MS) {
        return 0;
    }
    const la_modes modes = la_modes_get();
    la_cpu_release_tiles();
    la_modes_set(*(const la_modes *)callers);
    const PyGILState_STATE gil = PyGILState_Ensure();
    const int raised = PyErr_CheckSignals() != 0;
    PyGILState_Release(gil);
    la_modes_set(modes);
    last_look = la_clock_ms();
    return raised;
}

int
la_run_python(const struct la_call *call)
{
    la_modes callers = la_modes_get();
    /* Runs Python's signal handlers.  If it stops a call, an exception is set. */
    const struct la_watch signals = {poll, &callers};
    /* Short calls keep the GIL: another thread that takes it may hold it for 5 ms. */
    PyThreadState *const state = la_is_long(call) ? PyEval_SaveThread() : NULL;
    const enum la_status status = la_run(call, &signals);
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
    else if (status == LA_BAD_SHAPE) {
        PyErr_Format(PyExc_ValueError,
                     "%s: the sizes of the operands do not fit together",
                     call->signature->name);
    }
    else if (status == LA_OVERLAP) {
        PyErr_Format(PyExc_ValueError,
                     "%s: begin and end give two sequences the same token; expected "
                     "ranges of tokens that do not overlap",
                     call->signature->name);
    }
    return status == LA_DONE ? 0 : -1;
}
