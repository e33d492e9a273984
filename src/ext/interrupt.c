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

static _Thread_local int raised;

int
la_interrupt_pending(void)
{
    if (raised) {
        const PyGILState_STATE gil = PyGILState_Ensure();
        raised = PyErr_Occurred() != NULL;
        PyGILState_Release(gil);
    }
    return raised;
}

void
la_interrupt_no_memory(void)
{
    const PyGILState_STATE gil = PyGILState_Ensure();
    PyErr_NoMemory();
    raised = 1;
    PyGILState_Release(gil);
}

void
la_interrupt_start(struct la_interrupt *interrupt)
{
    atomic_store(&interrupt->stop, 0);
    clock_gettime(LA_CLOCK, &interrupt->last_look);
}

void
la_interrupt_look(struct la_interrupt *interrupt)
{
    const PyGILState_STATE gil = PyGILState_Ensure();
    if (PyErr_CheckSignals() != 0) {
        raised = 1;
        atomic_store(&interrupt->stop, 1);
    }
    PyGILState_Release(gil);
}

int
la_interrupt_worker(void *interrupt)
{
    struct la_interrupt *self = interrupt;
    return atomic_load_explicit(&self->stop, memory_order_relaxed);
}

int
la_interrupt_caller(void *interrupt)
{
    struct la_interrupt *self = interrupt;
    struct timespec now;
    clock_gettime(LA_CLOCK, &now);
    const int64_t ms = (int64_t)(now.tv_sec - self->last_look.tv_sec) * 1000 +
                       (now.tv_nsec - self->last_look.tv_nsec) / 1000000;
    if (ms >= LOOK_MS) {
        la_interrupt_look(self);
        clock_gettime(LA_CLOCK, &self->last_look);
    }
    return la_interrupt_worker(self);
}
