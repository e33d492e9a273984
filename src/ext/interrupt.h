/* interrupt.h: Ctrl-C in long calls: a watch (plan.h) that runs Python's signal
 * handlers. */
#ifndef LA_INTERRUPT_H
#define LA_INTERRUPT_H

#include <time.h>

#include "plan.h"

struct la_interrupt {
    struct timespec last_look;
};

/* A watch that begins now.  Its poll takes the GIL about every 30 ms; where it gives
 * up, the exception is set. */
struct la_watch la_interrupt_watch(struct la_interrupt *interrupt);

#endif
