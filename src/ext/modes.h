/* modes.h: a thread's floating-point modes and flags: rounding, subnormals, exceptions.
 * On x86 this is MXCSR alone; fenv.h would also save the slow x87 state. */
#ifndef LA_MODES_H
#define LA_MODES_H

#if defined(__SSE2__)
#include <xmmintrin.h>

typedef unsigned int la_modes;

static inline la_modes
la_modes_get(void)
{
    return _mm_getcsr();
}

static inline void
la_modes_set(la_modes modes)
{
    _mm_setcsr(modes);
}

#else
#include <fenv.h>

typedef fenv_t la_modes;

static inline la_modes
la_modes_get(void)
{
    fenv_t modes;
    fegetenv(&modes);
    return modes;
}

static inline void
la_modes_set(la_modes modes)
{
    fesetenv(&modes);
}
#endif

#endif
