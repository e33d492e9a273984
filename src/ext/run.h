/* run.h: runs a call from Python: handles Ctrl-C and the GIL, and raises exceptions. */
#ifndef LA_RUN_H
#define LA_RUN_H

#include "plan.h"

/* Computes a call; the caller holds the GIL.  0, or -1 with an exception set. */
int la_run_python(const struct la_call *call);

#endif
