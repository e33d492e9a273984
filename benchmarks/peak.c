/* peak.c: the processor's peak: independent multiply-adds in registers, and nothing else.
 *
 * Compiled for the processor at hand by rows/peak.py.  24 chains hide a latency of 4 to 6 cycles
 * on two units; a result that depends on all of them keeps them. */
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#if BYTES == 64
#define CHAINS 24
#else
#define CHAINS 12
#endif

#define PEAK(name, T)                                                                  \
    double name(long rounds)                                                           \
    {                                                                                  \
        typedef T vec __attribute__((vector_size(BYTES)));                             \
        const int lanes = BYTES / sizeof(T);                                           \
        vec x[CHAINS], a, b;                                                           \
        for (int l = 0; l < lanes; l++) {                                              \
            a[l] = (T)0.999;                                                           \
            b[l] = (T)0.001;                                                           \
            for (int i = 0; i < CHAINS; i++) {                                         \
                x[i][l] = (T)(i + l);                                                  \
            }                                                                          \
        }                                                                              \
        for (long r = 0; r < rounds; r++) {                                            \
            _Pragma("GCC unroll 24") for (int i = 0; i < CHAINS; i++)                  \
            {                                                                          \
                x[i] = x[i] * a + b;                                                   \
            }                                                                          \
        }                                                                              \
        double sum = 0;                                                                \
        for (int i = 0; i < CHAINS; i++) {                                             \
            for (int l = 0; l < lanes; l++) {                                          \
                sum += x[i][l];                                                        \
            }                                                                          \
        }                                                                              \
        return sum;                                                                    \
    }

PEAK(peak_f32, float)
PEAK(peak_f64, double)

/* Floating-point operations of one round, in float. */
long
operations(void)
{
    return 2L * CHAINS * (BYTES / 4);
}
