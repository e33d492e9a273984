/* complex_scan.h: the linear scan (linear_scan.h) of complex numbers, one sequence.
 *
 *   h_i = a_i h_{i-1} + x_i, or exp(a_i) h_{i-1} + x_i where a holds logarithms
 *
 * The m columns are the real and imaginary parts of m / 2 complex numbers, each real
 * part before its imaginary one.  Gradients are dL/dRe + i dL/dIm of real L.  8 flops
 * a number forward.  Scratch and causality as of the linear scan. */
#ifndef LA_COMPLEX_SCAN_H
#define LA_COMPLEX_SCAN_H

#include "linear_scan_backward.h"

static struct linear_scan_scratch
complex_scan_carve(const struct la_head *h, struct arena *arena)
{
    return linear_scan_carve(h, arena);
}

static int
run_complex_scan(const struct la_head *h)
{
    const struct la_head flipped = in_order(h);
    return scan_rows(&flipped, kind_of_scan(h, 1));
}

static struct linear_scan_scratch
complex_scan_step_carve(const struct la_head *h, struct arena *arena)
{
    return linear_scan_carve(h, arena);
}

static int
run_complex_scan_step(const struct la_head *h)
{
    return scan_token(h, kind_of_scan(h, 1));
}

static struct linear_scan_backward_scratch
complex_scan_backward_carve(const struct la_head *h, struct arena *arena)
{
    return linear_scan_backward_carve(h, arena);
}

static int
run_complex_scan_backward(const struct la_head *h)
{
    const struct la_head flipped = in_order(h);
    return scan_rows_back(&flipped, kind_of_scan(h, 1));
}

#endif
