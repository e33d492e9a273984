/* interrupt.h: Ctrl-C during a long call, and the exceptions that inner loops raise.
 *
 * A ufunc goes on to its next inner loop after one that raised an exception, so that
 * each asks first whether one is pending. */
#ifndef LA_INTERRUPT_H
#define LA_INTERRUPT_H

#include <stdatomic.h>
#include <time.h>

struct la_interrupt {
    atomic_int stop;
    struct timespec last_look;
};

/* Whether an exception that a loop of this thread raised still stands. */
int la_interrupt_pending(void);

/* Raises MemoryError. */
void la_interrupt_no_memory(void);

/* Clears it, at the beginning of a call. */
void la_interrupt_start(struct la_interrupt *interrupt);

/* Takes the GIL and looks for signals; a Python exception is then set. */
void la_interrupt_look(struct la_interrupt *interrupt);

/* What kernels poll, with a la_interrupt: nonzero means to give up.  The caller's
 * thread looks for signals now and then, a worker only asks whether there was one. */
int la_interrupt_caller(void *interrupt);
int la_interrupt_worker(void *interrupt);

#endif
