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

/* The same modes, but results below the smallest normal number become 0. */
static inline la_modes
la_modes_flushing(la_modes modes)
{
    return modes | _MM_FLUSH_ZERO_ON;
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

/* Other processors compute subnormal numbers about as fast as others. */
static inline la_modes
la_modes_flushing(la_modes modes)
{
    return modes;
}
#endif

#endif
