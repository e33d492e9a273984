/* interrupt.c: see interrupt.h. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "interrupt.h"

#include <stdint.h>

/* Looks for signals at most every LOOK_MS: taking the GIL may mean waiting. */
enum { LOOK_MS = 30 };

#if defined(CLOCK_MONOTONIC_COARSE)
#define LA_CLOCK CLOCK_MONOTONIC_COARSE
#else
#define LA_CLOCK CLOCK_MONOTONIC
#endif

static int
poll(void *arg)
{
    struct la_interrupt *self = arg;
    struct timespec now;
    clock_gettime(LA_CLOCK, &now);
    const int64_t ms = (int64_t)(now.tv_sec - self->last_look.tv_sec) * 1000 +
                       (now.tv_nsec - self->last_look.tv_nsec) / 1000000;
    if (ms < LOOK_MS) {
        return 0;
    }
    const PyGILState_STATE gil = PyGILState_Ensure();
    const int raised = PyErr_CheckSignals() != 0;
    PyGILState_Release(gil);
    clock_gettime(LA_CLOCK, &self->last_look);
    return raised;
}

struct la_watch
la_interrupt_watch(struct la_interrupt *interrupt)
{
    clock_gettime(LA_CLOCK, &interrupt->last_look);
    return (struct la_watch){poll, interrupt};
}
