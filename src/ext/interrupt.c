/* interrupt.c: see interrupt.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "interrupt.h"

#include "os.h"

/* Looks for signals at most every LOOK_MS: taking the GIL may mean waiting. */
enum { LOOK_MS = 30 };

/* The last look of this thread, in whatever call: many short ones that NumPy makes of
 * one are a long one. */
static _Thread_local int64_t last_look;

static int
poll(void *unused)
{
    (void)unused;
    if (la_clock_ms() - last_look < LOOK_MS) {
        return 0;
    }
    const PyGILState_STATE gil = PyGILState_Ensure();
    const int raised = PyErr_CheckSignals() != 0;
    PyGILState_Release(gil);
    last_look = la_clock_ms();
    return raised;
}

const struct la_watch la_interrupt_watch = {poll, NULL};
