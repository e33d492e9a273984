/* faults.c: preloaded, makes memory, threads and what is known of CPUs fail when a test
 * says so, and writes past the extension's memory.
 *
 * Counted are requests of the extension's code, or of that and Python's: the n-th of
 * them fails.  What the extension holds is counted as well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t),
    *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static struct range {
    uintptr_t begin, end;
} extension, python;                    /* where their code lies */
static atomic_long fail_at, seen, held; /* fail_at: 0, none */
static _Atomic(void *) pieces[256];     /* those held */
static atomic_long threads = 1 << 30;   /* that may still be started */
static atomic_int both, armed, spares_functions;
static atomic_long cpus; /* that the system tells of where it has no sets; 0: it has */
static _Atomic(char *)
    beyond; /* the end of the piece that was asked for last, aligned */
static atomic_int overrun;

void
faults_range(int of_python, uintptr_t begin, uintptr_t end)
{
    *(of_python ? &python : &extension) = (struct range){begin, end};
}

/* From now on the n-th request fails, and no other; n is 0: none, and all are counted.
 */
void
faults_arm(long n, int of_both)
{
    atomic_store(&seen, 0);
    atomic_store(&fail_at, n);
    atomic_store(&both, of_both);
    atomic_store(&armed, 1);
}

/* From now on requests for a function object of Python's do not fail. */
void
faults_spare_functions(void)
{
    atomic_store(&spares_functions, 1);
}

/* How many requests there were since. */
long
faults_disarm(void)
{
    atomic_store(&armed, 0);
    return atomic_load(&seen);
}

long
faults_held(void)
{
    return atomic_load(&held);
}

void
faults_threads(long n)
{
    atomic_store(&threads, n);
}

/* From now on there are no sets of CPUs, and no word of where a thread runs; 0: there
 * are again. */
void
faults_cpus(long n)
{
    atomic_store(&cpus, n);
}

/* Whether the end of aligned memory is written over when the extension asks for the
 * time, which it does in the middle of a call. */
void
faults_overrun(int yes)
{
    atomic_store(&overrun, yes);
}

static int
in(const struct range *range, void *caller)
{
    return (uintptr_t)caller >= range->begin && (uintptr_t)caller < range->end;
}

static int
ours(void *caller)
{
    return in(&extension, caller);
}

/* Whether a caller of the caller makes a function object. */
static int
in_new_function(void)
{
    void *callers[8];
    Dl_info place;
    for (int i = backtrace(callers, 8) - 1; i >= 0; i--) {
        if (dladdr(callers[i], &place) && place.dli_sname != NULL &&
            strcmp(place.dli_sname, "PyFunction_NewWithQualName") == 0) {
            return 1;
        }
    }
    return 0;
}

static int
fails(void *caller)
{
    if (!atomic_load(&armed) ||
        (!ours(caller) && !(atomic_load(&both) && in(&python, caller)))) {
        return 0;
    }
    return atomic_fetch_add(&seen, 1) + 1 == atomic_load(&fail_at) &&
           !(atomic_load(&spares_functions) && in_new_function());
}

static void *
counted(void *memory, void *caller)
{
    if (memory == NULL) {
        errno = ENOMEM;
    }
    for (int i = 0; memory != NULL && ours(caller) && i < 256; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong(&pieces[i], &none, memory)) {
            atomic_fetch_add(&held, 1);
            break;
        }
    }
    return memory;
}

#define HERE __builtin_return_address(0)
/* `next`: the function that this one stands before. */
#define NEXT(type, name, ...)                                                          \
    static type (*next)(__VA_ARGS__);                                                  \
    if (next == NULL) {                                                                \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                     \
    }

void *
malloc(size_t size)
{
    return counted(fails(HERE) ? NULL : __libc_malloc(size), HERE);
}

void *
calloc(size_t n, size_t size)
{
    return counted(fails(HERE) ? NULL : __libc_calloc(n, size), HERE);
}

void *
realloc(void *memory, size_t size)
{
    return fails(HERE) ? NULL : __libc_realloc(memory, size);
}

int
posix_memalign(void **memory, size_t alignment, size_t size)
{
    void *p = counted(fails(HERE) ? NULL : __libc_memalign(alignment, size), HERE);
    if (p == NULL) {
        return ENOMEM;
    }
    if (ours(HERE)) {
        atomic_store(&beyond, (char *)p + size);
    }
    *memory = p;
    return 0;
}

void
free(void *memory)
{
    for (int i = 0; memory != NULL && atomic_load(&held) > 0 && i < 256; i++) {
        void *piece = memory;
        if (atomic_compare_exchange_strong(&pieces[i], &piece, NULL)) {
            atomic_fetch_sub(&held, 1);
            break;
        }
    }
    __libc_free(memory);
}

void *
mmap(void *at, size_t size, int protection, int flags, int file, off_t offset)
{
    NEXT(void *, mmap, void *, size_t, int, int, int, off_t)
    if (fails(HERE)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return next(at, size, protection, flags, file, offset);
}

int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
               void *(*start)(void *), void *arg)
{
    NEXT(int, pthread_create, pthread_t *, const pthread_attr_t *, void *(*)(void *),
         void *)
    if (ours(HERE) && atomic_fetch_sub(&threads, 1) <= 0) {
        return EAGAIN;
    }
    return next(thread, attributes, start, arg);
}

int
sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    NEXT(int, sched_getaffinity, pid_t, size_t, cpu_set_t *)
    return ours(HERE) && atomic_load(&cpus) != 0 ? -1 : next(pid, size, set);
}

int
sched_getcpu(void)
{
    NEXT(int, sched_getcpu, void)
    return ours(HERE) && atomic_load(&cpus) != 0 ? -1 : next();
}

long
sysconf(int name)
{
    NEXT(long, sysconf, int)
    return ours(HERE) && atomic_load(&cpus) != 0 ? atomic_load(&cpus) : next(name);
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
    NEXT(int, clock_gettime, clockid_t, struct timespec *)
    if (ours(HERE) && atomic_load(&overrun)) {
        atomic_load(&beyond)[-1] = 0;
    }
    return next(clock, now);
}
