/* zip.h: rows of numbers that lie column by column without gaps: n vectors hold n
 * numbers of each of VL columns.
 *
 * Each result is built by a chain of shuffles of two vectors, whose indices are
 * constant expressions: -1 is a lane that a later shuffle sets. */
#ifndef LA_ZIP_H
#define LA_ZIP_H

#include "vec.h"

enum { LA_ZIP_MAX = 4 }; /* the largest n */

/* Lane k of a shuffle of lanes L, by the function `at` of its place. */
#define LA_SHUFFLE_2(at, x, y, n, i, v)                                                \
    __builtin_shufflevector(x, y, at(2, n, i, v, 0), at(2, n, i, v, 1))
#define LA_SHUFFLE_4(at, x, y, n, i, v)                                                \
    __builtin_shufflevector(x, y, at(4, n, i, v, 0), at(4, n, i, v, 1),                \
                            at(4, n, i, v, 2), at(4, n, i, v, 3))
#define LA_SHUFFLE_8(at, x, y, n, i, v)                                                \
    __builtin_shufflevector(x, y, at(8, n, i, v, 0), at(8, n, i, v, 1),                \
                            at(8, n, i, v, 2), at(8, n, i, v, 3), at(8, n, i, v, 4),   \
                            at(8, n, i, v, 5), at(8, n, i, v, 6), at(8, n, i, v, 7))
#define LA_SHUFFLE_16(at, x, y, n, i, v)                                               \
    __builtin_shufflevector(                                                           \
        x, y, at(16, n, i, v, 0), at(16, n, i, v, 1), at(16, n, i, v, 2),              \
        at(16, n, i, v, 3), at(16, n, i, v, 4), at(16, n, i, v, 5),                    \
        at(16, n, i, v, 6), at(16, n, i, v, 7), at(16, n, i, v, 8),                    \
        at(16, n, i, v, 9), at(16, n, i, v, 10), at(16, n, i, v, 11),                  \
        at(16, n, i, v, 12), at(16, n, i, v, 13), at(16, n, i, v, 14),                 \
        at(16, n, i, v, 15))
#define LA_SHUFFLE(at, x, y, n, i, v) LA_PASTE(LA_SHUFFLE_, LA_LANES)(at, x, y, n, i, v)

/* Row v: number v + n k of all goes to lane k.  Shuffle i adds those of vector i. */
#define LA_ROW_AT(L, n, i, v, k)                                                       \
    ((v) + (n) * (k) >= ((i) + 1) * (L)         ? -1                                   \
     : (i) == 1 || (v) + (n) * (k) >= (i) * (L) ? (v) + (n) * (k) - ((i) - 1) * (L)    \
                                                : (k))

/* Vector v: lane k is number v L + k of all.  Shuffle i adds those of row i. */
#define LA_COLUMN_AT(L, n, i, v, k)                                                    \
    (((v) * (L) + (k)) % (n) > (i)    ? -1                                             \
     : ((v) * (L) + (k)) % (n) == (i) ? (L) + ((v) * (L) + (k)) / (n)                  \
     : (i) == 1                       ? ((v) * (L) + (k)) / (n)                        \
                                      : (k))

#define LA_JOIN_2(at, x, v) LA_SHUFFLE(at, x[0], x[1], 2, 1, v)
#define LA_JOIN_3(at, x, v)                                                            \
    LA_SHUFFLE(at, LA_SHUFFLE(at, x[0], x[1], 3, 1, v), x[2], 3, 2, v)
#define LA_JOIN_4(at, x, v)                                                            \
    LA_SHUFFLE(at, LA_SHUFFLE(at, LA_SHUFFLE(at, x[0], x[1], 4, 1, v), x[2], 4, 2, v), \
               x[3], 4, 3, v)

/* Defines `name`: y[v] = the result v of n vectors x, n <= LA_ZIP_MAX. */
#define LA_DEFINE_ZIP(name, at)                                                        \
    INLINE void name(vec y[], const vec x[], const int n)                              \
    {                                                                                  \
        if (n == 1) {                                                                  \
            y[0] = x[0];                                                               \
        }                                                                              \
        else if (n == 2) {                                                             \
            y[0] = LA_JOIN_2(at, x, 0), y[1] = LA_JOIN_2(at, x, 1);                    \
        }                                                                              \
        else if (n == 3) {                                                             \
            y[0] = LA_JOIN_3(at, x, 0), y[1] = LA_JOIN_3(at, x, 1);                    \
            y[2] = LA_JOIN_3(at, x, 2);                                                \
        }                                                                              \
        else {                                                                         \
            y[0] = LA_JOIN_4(at, x, 0), y[1] = LA_JOIN_4(at, x, 1);                    \
            y[2] = LA_JOIN_4(at, x, 2), y[3] = LA_JOIN_4(at, x, 3);                    \
        }                                                                              \
    }

/* The n rows of the columns in x, and these columns from their rows. */
LA_DEFINE_ZIP(vrows, LA_ROW_AT)
LA_DEFINE_ZIP(vcolumns, LA_COLUMN_AT)

#endif
