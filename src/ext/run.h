/* run.h: runs a call from Python: Ctrl-C, the GIL, and a status made an exception. */
#ifndef LA_RUN_H
#define LA_RUN_H

#include "plan.h"

/* Computes a call, with the GIL held; 0, or -1 with an exception set. */
int la_run_python(const struct la_call *call);

#endif
